from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from trtspec.serving.executors.torch.budget import LEAST
from trtspec.serving.executors.torch.cache_slots import CacheSlots, Slot, SlotLease
from trtspec.serving.text import Text, common_prefix

LONG = list(range(300))
ROOM = 10**6


def take(slots: CacheSlots, text: list[int], more: int = 0) -> SlotLease | None:
    return slots.take(Text(text), len(text), [], len(text) + more)


def granted(lease: SlotLease | None) -> SlotLease:
    assert lease is not None
    return lease


def filled(*texts: list[int], budget: int = ROOM) -> CacheSlots:
    """Slots 1, 2, ... that hold these texts, all free, the first the longest unused."""
    slots = CacheSlots(budget)
    leases = [granted(slots.take(Text(text), len(text), [], len(text))) for text in texts]
    for text, lease in zip(texts, leases, strict=True):
        slots.grow(lease.slot, len(text))
    for lease in leases:
        slots.free(lease.slot)
    return slots


def test_common_prefix_is_that_of_a_loop() -> None:
    dice = random.Random(0)
    for _ in range(500):
        a = [dice.randrange(50) for _ in range(dice.randrange(200))]
        b = a[: dice.randrange(len(a) + 1)] + [dice.randrange(50) for _ in range(dice.randrange(30))]
        limit = dice.randrange(min(len(a), len(b)) + 1)
        same = 0
        while same < limit and a[same] == b[same]:
            same += 1
        assert common_prefix(a, b, limit) == same


def test_the_slot_of_the_last_round_is_taken_again() -> None:
    slots = filled(LONG[:100], [7, 7, 7], [8, 8])
    assert take(slots, [*LONG[:98], 5, 6]) == SlotLease(1, 98)
    assert take(slots, [7, 7, 7, 1]) == SlotLease(2, 3)


def test_a_text_that_grew_is_known_by_itself_and_only_what_is_new_is_compared() -> None:
    class Unread(Text):
        """What was read once is not read again."""

        read_from = 0

        def __getitem__(self, part: Any) -> Any:
            assert not isinstance(part, slice) or part.start >= self.read_from
            return super().__getitem__(part)

    slots, text = CacheSlots(ROOM), Unread(LONG)
    new: list[int] = []
    lease = granted(slots.take(text, 300, new, 305))
    new += [1, 2, 3, 4]
    slots.grow(lease.slot, 303)
    slots.free(lease.slot)
    text += [1, 2, 9]
    text.read_from = 300
    assert slots.take(text, 303, [], 310) == SlotLease(lease.slot, 302)


def test_the_last_token_is_not_reused() -> None:
    assert granted(take(filled(LONG[:100]), LONG[:100])).reused == 99


def test_a_text_that_would_lose_its_tail_is_copied_from() -> None:
    slots = filled(LONG, [7, 7])
    assert take(slots, [*LONG[:150], 3]) == SlotLease(3, 150, copy_from=1)
    assert take(slots, [*LONG, 3]) == SlotLease(1, 300)


def test_a_shared_prefix_is_found_by_comparing_only_a_few_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """As texts do that share the prompt of a system."""
    slots, compared = filled(*([*LONG, number, 7, 7] for number in range(100))), list[Slot]()
    common = Slot.common

    def counted(slot: Slot, text: Text, limit: int) -> int:
        compared.append(slot)
        return common(slot, text, limit)

    monkeypatch.setattr(Slot, "common", counted)
    assert take(slots, [*LONG, 40, 7, 8]) == SlotLease(41, 302)
    assert len(compared) == 2
    slots.free(41)
    assert borrow(slots, Text([*LONG, 30, 9])) == SlotLease(101, 301, copy_from=31)
    assert len(compared) == 3


def test_a_busy_slot_is_copied_from_when_that_pays() -> None:
    slots = CacheSlots(ROOM)
    busy = granted(take(slots, LONG[:100]))
    slots.grow(busy.slot, 100)
    assert take(slots, [*LONG[:100], 1]) == SlotLease(2, 100, copy_from=1)
    assert take(slots, [*LONG[:50], 1]) == SlotLease(3, 0)


def test_the_same_text_twice_at_once() -> None:
    slots, text = CacheSlots(ROOM), Text(LONG)
    slots.grow(granted(slots.take(text, 300, [], 301)).slot, 300)
    assert slots.take(text, 300, [], 301) == SlotLease(2, 299, copy_from=1)
    slots.free(2)
    slots.free(1)
    assert slots.take(text, 300, [], 301) == SlotLease(2, 299)


def test_tokens_that_a_busy_slot_has_not_computed_are_not_copied() -> None:
    slots = CacheSlots(ROOM)
    slots.grow(granted(take(slots, LONG)).slot, 10)
    assert take(slots, LONG) == SlotLease(2, 0)


def test_the_least_recently_used_are_dropped_for_room() -> None:
    slots = filled([1] * 100, [2] * 100, [3] * 100, budget=300)
    assert take(slots, [4] * 90) == SlotLease(4, 0, dropped=(1,))
    assert take(slots, [5] * 110) == SlotLease(5, 0, dropped=(2,))


def test_a_text_at_work_is_not_dropped() -> None:
    slots = filled([1] * 100, [2] * 100, [3] * 100, budget=300)
    busy = granted(take(slots, [1] * 99 + [5]))
    assert busy.slot == 1
    assert take(slots, [4] * 201) is None
    assert slots.tokens == 300, "something was dropped for nothing"
    assert take(slots, [4] * 200) == SlotLease(4, 0, dropped=(2, 3))


def test_room_for_what_a_sequence_can_become_is_kept() -> None:
    slots = CacheSlots(300)
    first = granted(take(slots, [1] * 10, more=190))
    assert take(slots, [2] * 101) is None
    assert take(slots, [2] * 100) is not None
    slots.grow(first.slot, 200)
    assert slots.tokens == 300


def test_without_room_for_a_copy_the_source_is_taken() -> None:
    slots = filled(LONG, budget=400)
    assert take(slots, [*LONG[:150], 3]) == SlotLease(1, 150)


def test_a_short_text_counts_what_it_takes_at_least() -> None:
    slots = CacheSlots(2 * LEAST)
    assert take(slots, [1])
    assert take(slots, [2])
    assert take(slots, [3]) is None


def test_nothing_is_known_after_clear() -> None:
    slots = filled(LONG, [7, 7])
    busy = granted(take(slots, [9]))
    assert slots.clear() == (1, 2)
    assert granted(take(slots, LONG)).reused == 0
    assert busy.slot == 3


def test_rounds_of_as_many_texts_as_fit_lose_nothing() -> None:
    """Each text comes again and again, between it all others: what was computed is never computed again."""
    budget, texts = 16 * 300, [Text([index, 1, 2, 3] * 20) for index in range(16)]
    slots = CacheSlots(budget)
    for number in range(40):
        for text in texts:
            new = [number] * 4
            lease = granted(slots.take(text, len(text), new, len(text) + 5))
            assert lease.reused == (len(text) - 1 if number else 0)
            slots.grow(lease.slot, len(text) + 4)
            slots.free(lease.slot)
            text += [number] * 5


def borrow(slots: CacheSlots, text: Text, more: int = 5) -> SlotLease | None:
    return slots.borrow(text, len(text), [], len(text) + more)


def verified(slots: CacheSlots, text: Text, more: int = 5) -> int:
    """Lets a sequence of the target run over a text but for its last token; returns its slot."""
    lease = granted(slots.take(text, len(text), [], len(text) + more))
    slots.grow(lease.slot, len(text) - 1)
    slots.free(lease.slot)
    return lease.slot


def test_a_draft_borrows_the_slot_of_its_text_and_gives_it_back_as_it_was() -> None:
    slots, text = CacheSlots(ROOM), Text(LONG[:50])
    slot = verified(slots, text)
    before = slots.tokens
    assert granted(borrow(slots, text)) == SlotLease(slot, 49)
    assert slots.busy == 64
    slots.go_over(slot, 49)
    slots.free(slot)
    assert (slots.tokens, slots.busy, slots.headed(slot)) == (before, 0, 49)
    text.extend([1, 2, 3])
    assert verified(slots, text) == slot
    assert slots.headed(slot) == 49  # The next draft need not read the text again.
    slots.borrow(text, len(text), [], 60)
    assert slots.headed(slot) == 49


def test_a_draft_of_a_text_with_a_slot_of_its_own_compares_no_other() -> None:
    class Unread(Text):
        """A text that is not read again."""

        is_read = False

        def __getitem__(self, part: Any) -> Any:
            assert not self.is_read
            return super().__getitem__(part)

    slots, other, text = CacheSlots(ROOM), Unread([7] * 50), Text(LONG[:50])
    verified(slots, other)
    own = verified(slots, text)
    other.is_read = True
    assert borrow(slots, text) == SlotLease(own, 49)


def test_nothing_is_lent_of_a_text_that_is_not_there_whole() -> None:
    slots = filled(LONG[:50], budget=200)
    assert borrow(slots, Text(LONG[:53])) is None
    assert borrow(slots, Text([7, *LONG[:20]])) is None
    assert borrow(slots, Text(LONG[:51]), 150) is None  # There is no room for such a draft.
    assert slots.tokens == 64
    assert borrow(slots, Text(LONG[:51])) == SlotLease(1, 50)


def test_a_slot_that_others_need_is_copied_once() -> None:
    """The copy is the text's own from then on, and gets only what is new."""
    slots, real, own = CacheSlots(ROOM), Text(LONG[:100]), Text(LONG[:80])
    busy = granted(slots.take(real, 100, [], 200)).slot
    slots.grow(busy, 99)
    lease = granted(borrow(slots, own))
    assert (lease.reused, lease.copy_from, lease.present) == (79, busy, 0)
    slots.go_over(lease.slot, 79)
    slots.free(lease.slot)
    own.extend(LONG[80:90])
    again = granted(borrow(slots, own))
    assert (again.slot, again.reused, again.copy_from, again.present) == (lease.slot, 89, busy, 79)
    assert slots.headed(lease.slot) == 79


def test_a_head_keeps_its_rows_of_the_prefix_that_two_texts_share() -> None:
    """But for the last position, whose row is made of the token behind it."""
    slots, text = CacheSlots(ROOM), Text(LONG[:50])
    slot = verified(slots, text)
    slots.free(granted(borrow(slots, text)).slot)
    slots.go_over(slot, 49)
    other = Text([*LONG[:30], 7, 7])
    assert verified(slots, other) == slot
    assert slots.headed(slot) == 29


class Rounds(RuleBasedStateMachine):
    """Any order of beginning, growing, ending and forgetting: what is held is right and within the budget."""

    running = Bundle("running")

    def __init__(self) -> None:
        super().__init__()
        self.slots = CacheSlots(1000)
        self.busy: dict[int, tuple[Text, int, list[int], int]] = {}
        self.cache: dict[int, list[int]] = {}  # what the device has in each slot
        self.texts = [Text([kind] * 5) for kind in (1, 1, 2, 3)]

    @rule(
        target=running,
        which=st.integers(0, 3),
        more=st.lists(st.integers(1, 3), max_size=90),
        room=st.integers(1, 60),
    )
    def begin(self, which: int, more: list[int], room: int) -> int | None:
        text = self.texts[which]
        if len(text) + len(more) + room <= 1000:
            text += more
        elif len(text) + room > 1000:
            text = self.texts[which] = Text(more or [1])
        prompt_len = len(text)
        new: list[int] = []
        lease = self.slots.take(text, prompt_len, new, prompt_len + room)
        if lease is None:
            assert self.busy, "there was room, and it was not given"
            return None
        assert not {*lease.dropped} & {*self.busy}
        for slot in lease.dropped:
            del self.cache[slot]
        if lease.copy_from is not None:
            self.cache[lease.slot] = self.cache[lease.copy_from][: lease.reused]
        held = self.cache.setdefault(lease.slot, [])
        assert lease.slot not in self.busy
        assert lease.reused < prompt_len
        assert held[: lease.reused] == text[: lease.reused], "the cache has something else"
        del held[lease.reused :]
        self.busy[lease.slot] = (text, prompt_len, new, room)
        return lease.slot

    @rule(slot=running, tokens=st.lists(st.integers(1, 3), max_size=20))
    def grow(self, slot: int | None, tokens: list[int]) -> None:
        if slot is not None and slot in self.busy:
            text, prompt_len, new, room = self.busy[slot]
            new += tokens[: room - len(new)]
            self.cache[slot] = text[:prompt_len] + new
            self.slots.grow(slot, prompt_len + len(new))

    @rule(slot=consumes(running), keeps=st.booleans())
    def end(self, slot: int | None, keeps: bool) -> None:
        if slot is not None and slot in self.busy:
            text, prompt_len, new, _ = self.busy.pop(slot)
            self.slots.free(slot)
            if keeps and len(text) == prompt_len and prompt_len + len(new) < 900:
                text += new

    @rule()
    def forget(self) -> None:
        for slot in self.slots.clear():
            del self.cache[slot]

    @invariant()
    def counts_are_right(self) -> None:
        assert self.slots.tokens <= self.slots.budget
        held = {slot: len(tokens) for slot, tokens in self.cache.items()}
        held |= {slot: prompt_len + room for slot, (_, prompt_len, _, room) in self.busy.items()}
        assert self.slots.tokens == sum(max(tokens, LEAST) for tokens in held.values())


TestRounds = Rounds.TestCase
TestRounds.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
