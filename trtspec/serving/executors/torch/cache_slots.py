"""The slots of the KV cache: which text each holds, and whose beginning can be reused. No tensors."""

from __future__ import annotations

from dataclasses import dataclass, field

from trtspec.serving.executors.torch.budget import held
from trtspec.serving.text import Text, common_prefix

# How many tokens a copy must save to be made. A slot that would lose as many of its text is copied from, not
# taken; the next round of a text drops only the rejected tokens of its last draft, which are fewer.
WORTH_COPYING = 64


@dataclass(slots=True, eq=False)
class Slot:
    """A slot of the cache, which holds the beginning of one sequence, `text[:prompt_len] + new`."""

    number: int
    text: Text = field(default_factory=lambda: Text(()))
    prompt_len: int = 0
    new: list[int] = field(default_factory=list)
    """The sequence's own list, which may grow further."""
    length: int = 0
    """The cache holds the first `length` tokens of `text[:prompt_len] + new`."""
    headed: int = 0
    """The number of positions for which a head that lives in the engine has keys and values of its own.

    They are the first positions, each made of a position and the token behind it.
    """
    reserved: int = 0
    """The length that the running sequence can reach; 0 while none runs."""
    used: int = 0
    """The time of the last use, on the clock of `CacheSlots`."""

    @property
    def is_busy(self) -> bool:
        return self.reserved > 0

    @property
    def held(self) -> int:
        """Returns the tokens that the slot counts in the budget."""
        return held(self.reserved or self.length)

    def loses_much(self, text: Text, reused: int) -> bool:
        """Says whether taking the slot for another text would lose a beginning that others may share."""
        return text is not self.text and self.length - reused >= WORTH_COPYING

    def headed_of(self, text: Text, reused: int) -> int:
        """Returns how many positions of `text`, of which `reused` tokens are here, a head need not go over.

        What a head has read is of the slot's own text, never of what was generated behind it.
        """
        return self.headed if text is self.text else min(self.headed, max(reused - 1, 0))

    def has(self, text: Text, place: int) -> bool:
        """Says whether the cache has the token of `text` at a place, whatever comes before it."""
        if place >= self.length:
            return False
        behind = place - self.prompt_len
        return text[place] == (self.text[place] if behind < 0 else self.new[behind])

    def common(self, text: Text, limit: int) -> int:
        """Returns how many of the first `limit` tokens of `text` the cache has.

        The same `Text` has only grown since, so only its newer tokens are compared.
        """
        limit = min(limit, self.length)
        prompt = min(limit, self.prompt_len)
        same = prompt if text is self.text else common_prefix(self.text, text, prompt)
        if same < self.prompt_len:
            return same
        return same + common_prefix(self.new, text[same:limit], limit - same)


@dataclass(frozen=True, slots=True)
class SlotLease:
    """The lease of a slot of the cache."""

    slot: int
    """The number of the slot."""
    reused: int
    """The number of tokens that need not be computed, once `copy_from`, if any, has been copied."""
    copy_from: int | None = None
    """The number of the slot to copy from; None if nothing is to be copied."""
    dropped: tuple[int, ...] = ()
    """The numbers of the slots that no longer exist."""
    kept: int = 0
    """The slot has the first `kept` of the `reused` tokens already."""


class CacheSlots:
    """The slots of a cache, which hold at most `budget` tokens together.

    A running sequence counts with the length that it may reach, so that it never lacks room. An idle slot
    keeps the beginning of texts to come and counts with its length; idle slots are dropped for room, the
    least recently used first. `budget` is at least the length that one sequence may reach.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._slots: dict[int, Slot] = {}
        self._of_text: dict[int, Slot] = {}  # by the identity of the text, which the slot keeps alive
        self._held = self._busy = self._clock = self._last = 0

    @property
    def tokens(self) -> int:
        """Returns the tokens that are held or reserved."""
        return self._held

    @property
    def busy(self) -> int:
        """Returns the tokens that running sequences reserve."""
        return self._busy

    def take(self, text: Text, prompt_len: int, new: list[int], longest: int) -> SlotLease | None:
        """Returns a slot for a sequence of `text[:prompt_len] + new` that may grow to `longest` tokens.

        It is None where running sequences leave no room. The last token of the prompt is computed in any
        case, since its logits are wanted.
        """
        best, reused = self._best(text, prompt_len - 1)
        source = None
        if best is not None and (best.is_busy or best.loses_much(text, reused)):
            source, best = (best if reused >= WORTH_COPYING else None), None
        dropped = self._make_room(held(longest) - (best.held if best else 0), best, source)
        if dropped is None and source is not None and not source.is_busy:
            # No room for a copy beside what is copied from.
            best, source = source, None
            dropped = self._make_room(held(longest) - best.held, best, None)
        if dropped is None:
            return None
        if best is None and source is None:
            reused = 0
        best = self._occupy(best, source, Slot(0, text, prompt_len, new, reused, reserved=longest))
        return SlotLease(best.number, reused, source.number if source else None, dropped)

    def borrow(self, text: Text, prompt_len: int, new: list[int], longest: int) -> SlotLease | None:
        """Returns a slot for a draft that goes on behind all but the last token of `text[:prompt_len]`.

        It is None where no slot has them all, or there is no room. They stay as they are: the slot's `length`
        does not grow while it is borrowed, and one that is busy, or has another text behind them, is copied.
        """
        known, own = prompt_len - 1, self._of_text.get(id(text))
        best: Slot | None = own
        # The usual case, in which the others, which may be thousands, need not be compared.
        if own is None or own.is_busy or own.common(text, known) < known:
            having = (
                slot
                for slot in self._slots.values()
                if (known == 0 or slot.has(text, known - 1)) and slot.common(text, known) == known
            )
            best = max(
                having,
                key=lambda slot: (not slot.is_busy, slot is own, slot.length == known),
                default=None,
            )
        if best is None:
            return None
        source, kept = None, 0
        if best.is_busy or (best is not own and best.length > known):
            source, best = best, None
            if own is not None and not own.is_busy:
                best, kept = own, own.common(text, known)
        dropped = self._make_room(held(longest) - (best.held if best else 0), best, source)
        if dropped is None:
            return None
        best = self._occupy(best, source, Slot(0, text, prompt_len, new, known, reserved=longest))
        return SlotLease(best.number, known, source.number if source else None, dropped, kept)

    def _occupy(self, slot: Slot | None, source: Slot | None, holds: Slot) -> Slot:
        """Returns the slot, a new one if it is None, with what it `holds` from now on."""
        if slot is None:
            self._last += 1
            slot = self._slots[self._last] = Slot(self._last)
            slot.headed = source.headed_of(holds.text, holds.length) if source else 0
        else:
            self._held -= slot.held
            self._forget_text(slot)
            slot.headed = slot.headed_of(holds.text, holds.length)
        slot.text, slot.prompt_len, slot.new = holds.text, holds.prompt_len, holds.new
        slot.length, slot.reserved = holds.length, holds.reserved
        self._of_text[id(slot.text)] = slot
        self._held += slot.held
        self._busy += slot.held
        return slot

    def headed(self, number: int) -> int:
        """Returns for how many positions of a slot a head has keys and values."""
        return self._slots[number].headed

    def go_over(self, number: int, headed: int) -> None:
        """Notes that a head now has keys and values for so many positions of a busy slot."""
        self._slots[number].headed = headed

    def grow(self, number: int, length: int) -> None:
        """Notes that the cache now holds the first `length` tokens of a busy slot's sequence."""
        self._slots[number].length = length

    def free(self, number: int) -> None:
        """Frees the slot of a finished sequence, whose tokens stay until the room is needed."""
        slot = self._slots[number]
        self._clock += 1
        self._held -= slot.held
        self._busy -= slot.held
        slot.reserved, slot.used = 0, self._clock
        self._held += slot.held

    def clear(self) -> tuple[int, ...]:
        """Drops all idle slots and returns their numbers."""
        return tuple(self._drop(slot) for slot in self._idle())

    def _idle(self) -> list[Slot]:
        return [slot for slot in self._slots.values() if not slot.is_busy]

    def _best(self, text: Text, limit: int) -> tuple[Slot | None, int]:
        """Returns the slot that has most of the text, idle rather than busy, used last, and how much."""
        own = self._of_text.get(id(text))
        if own is not None and not own.is_busy:
            return own, own.common(text, limit)
        best, most = None, 0
        for slot in sorted(self._slots.values(), key=lambda slot: (slot.is_busy, -slot.used)):
            # Thousands may begin as the text does, and only those are compared that may have more of it.
            if most < limit and slot.has(text, most) and (found := slot.common(text, limit)) > most:
                best, most = slot, found
        return best, most

    def _make_room(self, wanted: int, *kept: Slot | None) -> tuple[int, ...] | None:
        """Drops idle slots for `wanted` more tokens; drops none and returns None if there are too few."""
        excess = self._held + wanted - self.budget
        if excess <= 0:
            return ()
        going = []
        for slot in sorted(self._idle(), key=lambda slot: slot.used):
            if slot not in kept and excess > 0:
                going.append(slot)
                excess -= slot.held
        return None if excess > 0 else tuple(self._drop(slot) for slot in going)

    def _drop(self, slot: Slot) -> int:
        del self._slots[slot.number]
        self._held -= slot.held
        self._forget_text(slot)
        return slot.number

    def _forget_text(self, slot: Slot) -> None:
        if self._of_text.get(id(slot.text)) is slot:
            del self._of_text[id(slot.text)]
