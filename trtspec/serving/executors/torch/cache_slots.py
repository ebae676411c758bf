"""The slots of the KV cache: the sequence in each, and the prefixes that can be reused. No tensors."""

from __future__ import annotations

from dataclasses import dataclass, field

from trtspec.serving.executors.torch.budget import held
from trtspec.serving.text import Text, common_prefix

# The number of tokens that a copy must save. A slot that would lose as many tokens of its sequence is copied,
# not taken. The next round of a sequence drops only the rejected tokens of its last draft, which are fewer.
WORTH_COPYING = 64


@dataclass(slots=True, eq=False)
class Slot:
    """A slot of the cache, which holds a prefix of one sequence, `text[:prompt_len] + new`."""

    number: int
    text: Text = field(default_factory=lambda: Text(()))
    prompt_len: int = 0
    new: list[int] = field(default_factory=list)
    """The sequence's own list, which may grow further."""
    length: int = 0
    """The number of tokens of the sequence that the cache holds, from the first."""
    headed: int = 0
    """The number of positions, from the first, for which a head inside the engine has keys and values.

    The head makes them of a position and of the token after it.
    """
    reserved: int = 0
    """The largest length of the running sequence; 0 while none runs."""
    used: int = 0
    """The time of the last use, on the clock of `CacheSlots`."""

    @property
    def is_busy(self) -> bool:
        return self.reserved > 0

    @property
    def held(self) -> int:
        """The number of tokens that the slot counts in the budget."""
        return held(self.reserved or self.length)

    def loses_much(self, text: Text, reused: int) -> bool:
        """Says whether taking the slot for another sequence would lose a prefix that others may share."""
        return text is not self.text and self.length - reused >= WORTH_COPYING

    def headed_of(self, text: Text, reused: int) -> int:
        """Returns the number of positions of `text`, with `reused` tokens here, that a head need not compute.

        A head has computed only positions of the slot's own `text`, never of generated tokens after it.
        """
        return self.headed if text is self.text else min(self.headed, max(reused - 1, 0))

    def has(self, text: Text, position: int) -> bool:
        """Says whether the cache has the token of `text` at a position, whatever comes before it."""
        if position >= self.length:
            return False
        generated = position - self.prompt_len
        return text[position] == (self.text[position] if generated < 0 else self.new[generated])

    def common(self, text: Text, limit: int) -> int:
        """Returns the number of the first `limit` tokens of `text` that the cache has.

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
    """The number of tokens that need not be computed, after the copy if there is one."""
    copy_from: int | None = None
    """The number of the slot to copy from; None without a copy."""
    dropped: tuple[int, ...] = ()
    """The numbers of the slots that no longer exist."""
    present: int = 0
    """The number of the `reused` tokens, from the first, that the slot already has."""


class CacheSlots:
    """The slots of a cache, which hold at most `budget` tokens together.

    A running sequence counts with its largest length, so that it never lacks room. An idle slot keeps a
    prefix for later requests and counts with its length. The least recently used idle slots are dropped for
    room. `budget` is at least the largest length of one sequence.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._slots: dict[int, Slot] = {}
        self._of_text: dict[int, Slot] = {}  # by the identity of the text, which the slot keeps alive
        self.tokens = self.busy = self._clock = self._last = 0
        """The tokens that are held or reserved, and those that running sequences reserve."""

    def take(self, text: Text, prompt_len: int, new: list[int], longest: int) -> SlotLease | None:
        """Returns a slot for a sequence of `text[:prompt_len] + new` that may grow to `longest` tokens.

        It is None if running sequences leave no room. The last token of the prompt is always computed, since
        its logits choose the next token.
        """
        best, reused = self._best(text, prompt_len - 1)
        source = None
        if best is not None and (best.is_busy or best.loses_much(text, reused)):
            source, best = (best if reused >= WORTH_COPYING else None), None
        dropped = self._make_room(held(longest) - (best.held if best else 0), best, source)
        if dropped is None and source is not None and not source.is_busy:
            # There is no room for both the copy and its source.
            best, source = source, None
            dropped = self._make_room(held(longest) - best.held, best, None)
        if dropped is None:
            return None
        if best is None and source is None:
            reused = 0
        best = self._occupy(best, source, Slot(0, text, prompt_len, new, reused, reserved=longest))
        return SlotLease(best.number, reused, source.number if source else None, dropped)

    def borrow(self, text: Text, prompt_len: int, new: list[int], longest: int) -> SlotLease | None:
        """Returns a slot for a draft that continues all but the last token of `text[:prompt_len]`.

        It is None if no slot has all these tokens, or if there is no room. They do not change: the slot's
        `length` does not grow meanwhile, and a slot that is busy, or has other tokens after them, is copied.
        """
        known, own = prompt_len - 1, self._of_text.get(id(text))
        best: Slot | None = own
        # Usually the sequence's own slot has them, and the others, which may be thousands, are not compared.
        if own is None or own.is_busy or own.common(text, known) < known:
            having = (
                slot
                for slot in self._slots.values()
                if (known == 0 or slot.has(text, known - 1)) and slot.common(text, known) == known
            )
            best = max(
                having, key=lambda slot: (not slot.is_busy, slot is own, slot.length == known), default=None
            )
        if best is None:
            return None
        source, present = None, 0
        if best.is_busy or (best is not own and best.length > known):
            source, best = best, None
            if own is not None and not own.is_busy:
                best, present = own, own.common(text, known)
        dropped = self._make_room(held(longest) - (best.held if best else 0), best, source)
        if dropped is None:
            return None
        best = self._occupy(best, source, Slot(0, text, prompt_len, new, known, reserved=longest))
        return SlotLease(best.number, known, source.number if source else None, dropped, present)

    def _occupy(self, slot: Slot | None, source: Slot | None, holds: Slot) -> Slot:
        """Returns the slot, or a new one if it is None, with the new content `holds`."""
        if slot is None:
            self._last += 1
            slot = self._slots[self._last] = Slot(self._last)
            slot.headed = source.headed_of(holds.text, holds.length) if source else 0
        else:
            self.tokens -= slot.held
            self._forget_text(slot)
            slot.headed = slot.headed_of(holds.text, holds.length)
        slot.text, slot.prompt_len, slot.new = holds.text, holds.prompt_len, holds.new
        slot.length, slot.reserved = holds.length, holds.reserved
        self._of_text[id(slot.text)] = slot
        self.tokens += slot.held
        self.busy += slot.held
        return slot

    def headed(self, number: int) -> int:
        """Returns the number of positions of a slot for which a head has keys and values."""
        return self._slots[number].headed

    def go_over(self, number: int, headed: int) -> None:
        """Notes that a head now has keys and values for `headed` positions of a busy slot."""
        self._slots[number].headed = headed

    def grow(self, number: int, length: int) -> None:
        """Notes that the cache now holds the first `length` tokens of a busy slot's sequence."""
        self._slots[number].length = length

    def free(self, number: int) -> None:
        """Frees the slot of a finished sequence, whose tokens stay until their room is needed."""
        slot = self._slots[number]
        self._clock += 1
        self.tokens -= slot.held
        self.busy -= slot.held
        slot.reserved, slot.used = 0, self._clock
        self.tokens += slot.held

    def clear(self) -> tuple[int, ...]:
        """Drops all idle slots and returns their numbers."""
        return tuple(self._drop(slot) for slot in self._idle())

    def _idle(self) -> list[Slot]:
        return [slot for slot in self._slots.values() if not slot.is_busy]

    def _best(self, text: Text, limit: int) -> tuple[Slot | None, int]:
        """Returns the slot with the longest prefix of `text`, best idle or used last, and its length."""
        own = self._of_text.get(id(text))
        if own is not None and not own.is_busy:
            return own, own.common(text, limit)
        best, most = None, 0
        for slot in sorted(self._slots.values(), key=lambda slot: (slot.is_busy, -slot.used)):
            # Thousands may share a prefix, so only those are compared that may have a longer one.
            if most < limit and slot.has(text, most) and (found := slot.common(text, limit)) > most:
                best, most = slot, found
        return best, most

    def _make_room(self, needed: int, *spared: Slot | None) -> tuple[int, ...] | None:
        """Drops idle slots for `needed` more tokens; drops none and returns None if there are too few."""
        excess = self.tokens + needed - self.budget
        if excess <= 0:
            return ()
        going = []
        for slot in sorted(self._idle(), key=lambda slot: slot.used):
            if slot not in spared and excess > 0:
                going.append(slot)
                excess -= slot.held
        return None if excess > 0 else tuple(self._drop(slot) for slot in going)

    def _drop(self, slot: Slot) -> int:
        del self._slots[slot.number]
        self.tokens -= slot.held
        self._forget_text(slot)
        return slot.number

    def _forget_text(self, slot: Slot) -> None:
        if self._of_text.get(id(slot.text)) is slot:
            del self._of_text[id(slot.text)]
