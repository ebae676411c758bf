"""The token ids of sequences: of one, which every round gives to the engines again, and of earlier ones."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence


class Text(list[int]):
    """The token ids of a sequence, none below zero, which only grows. `largest` is the largest id.

    The same object goes to the engines round after round, so a round costs only its new tokens: nothing is
    copied or checked again, and an engine that gets it a second time knows that its prefix has not changed. A
    request's input is what the sequence holds when the request is enqueued; it may grow while the request
    runs. It is used on one thread at a time, but any thread may read slices of existing tokens.
    """

    __slots__ = ("_num_packed", "_packed", "largest")

    def __init__(self, token_ids: Iterable[int]) -> None:
        super().__init__(token_ids)
        self.largest = max(self, default=0)
        self._packed, self._num_packed = array("i"), 0

    def append(self, token_id: int) -> None:
        self.extend((token_id,))

    def extend(self, token_ids: Iterable[int]) -> None:
        before = len(self)
        super().extend(token_ids)
        self.largest = max((self.largest, *self[before:]))

    def beginning(self, length: int) -> Text:
        """Returns a copy of the first `length` tokens, which may grow differently."""
        other = Text(())
        list.extend(other, self[:length])
        other.largest = max(other, default=0) if self.largest in self[length:] else self.largest
        other._packed, other._num_packed = self._packed[:], min(self._num_packed, length)
        return other

    def packed(self, length: int) -> memoryview:
        """Returns the first `length` ids as int32, which never change. It converts only the new ones."""
        done = self._num_packed
        if length > len(self._packed):
            # Earlier views keep the old array.
            grown = array("i", bytes(4 * 2 * length))
            grown[:done] = self._packed[:done]
            self._packed = grown
        if length > done:
            self._packed[done:length] = array("i", self[done:length])
            self._num_packed = length
        return memoryview(self._packed)[:length]


def common_prefix(a: Sequence[int], b: Sequence[int], limit: int) -> int:
    """Returns the length of the common prefix, at most `limit`, by comparing ever larger slices."""
    same, step = 0, 16
    while same < limit:
        end = min(same + step, limit)
        if a[same:end] == b[same:end]:
            same, step = end, 2 * step
        else:
            limit, step = end - 1, max((end - same) // 2, 1)
    return same
