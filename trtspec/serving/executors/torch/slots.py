"""Which sequence lies in which slot of the cache, and whose beginning can be used again. No tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

# What a copy must save to be made, and what a slot may lose of its text before it is copied from rather than
# taken. The next round of a sequence drops the rejected tokens of its last draft, which are fewer.
WORTH_COPYING = 64


@dataclass(slots=True)
class Slot:
    """`tokens[:length]` is what the cache holds. The list is the sequence's own, which may grow further."""

    tokens: list[int] = field(default_factory=list)
    length: int = 0
    busy: bool = False
    used: int = 0


@dataclass(frozen=True, slots=True)
class Lease:
    """A slot taken: `reused` tokens need not be computed, once `copy_from`, if any, has been copied."""

    slot: int
    reused: int
    copy_from: int | None = None


class Slots:
    """A fixed number of slots; the one least recently used is overwritten first."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._slots = [Slot() for _ in range(count)]
        self._clock = 0

    def take(self, tokens: list[int], needed: int) -> Lease | None:
        """A slot for a sequence that starts with `tokens`, or None when all are busy.

        `needed` tokens at the end are computed in any case, since their logits are wanted.
        """
        free = [index for index, slot in enumerate(self._slots) if not slot.busy]
        if not free:
            return None
        limit = len(tokens) - needed
        common = [common_prefix(slot.tokens, tokens, min(slot.length, limit)) for slot in self._slots]
        best = max(range(len(common)), key=lambda index: (common[index], not self._slots[index].busy))
        loss = self._slots[best].length - common[best]
        if common[best] and loss < WORTH_COPYING and not self._slots[best].busy:
            lease = Lease(best, common[best])
        else:
            oldest = min(free, key=lambda index: self._slots[index].used)
            saved = common[best] - common[oldest]
            lease = (
                Lease(oldest, common[best], best) if saved >= WORTH_COPYING else Lease(oldest, common[oldest])
            )
        taken = self._slots[lease.slot]
        taken.tokens, taken.length, taken.busy = tokens, lease.reused, True
        return lease

    def grow(self, index: int, length: int) -> None:
        """The cache of a busy slot now holds the first `length` tokens of its sequence."""
        self._slots[index].length = length

    def free(self, index: int) -> None:
        """The sequence is finished; what it said stays until the slot is taken."""
        self._clock += 1
        slot = self._slots[index]
        slot.busy, slot.used = False, self._clock

    def forget(self) -> None:
        """Nothing that the cache holds may be used again."""
        for slot in self._slots:
            slot.length = 0


def common_prefix(a: Sequence[int], b: Sequence[int], limit: int) -> int:
    """How many of the first `limit` tokens are the same, found by comparing ever larger slices."""
    same, step = 0, 16
    while same < limit:
        end = min(same + step, limit)
        if a[same:end] == b[same:end]:
            same, step = end, 2 * step
        else:
            limit, step = end - 1, max((end - same) // 2, 1)
    return same
