"""The token ids of one completion, which every round hands to the engines again."""

from __future__ import annotations

from array import array
from collections.abc import Iterable


class Text(list[int]):
    """A list of token ids, none below zero, to which tokens are only appended; `largest` is the largest.

    The same `Text` goes to the engines round after round, so that a round costs what is new and not what the
    text is long: nothing is copied or checked again, and an engine that gets it a second time knows that its
    beginning has not changed. A request's input is what the text holds when the request is enqueued; the text
    may grow while the request runs. It is used on one thread at a time, except that slices of what is there
    may be read on any thread.
    """

    __slots__ = ("_num_packed", "_packed", "largest")

    def __init__(self, token_ids: Iterable[int]) -> None:
        super().__init__(token_ids)
        self.largest = max(self, default=0)
        self._packed, self._num_packed = array("i"), 0

    def append(self, token_id: int) -> None:
        super().append(token_id)
        if token_id > self.largest:
            self.largest = token_id

    def extend(self, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            self.append(token_id)

    def beginning(self, length: int) -> Text:
        """Returns another text that begins with the same `length` tokens, and may go on otherwise."""
        other = Text(())
        list.extend(other, self[:length])
        other.largest = max(other, default=0) if self.largest in self[length:] else self.largest
        other._packed, other._num_packed = self._packed[:], min(self._num_packed, length)
        return other

    def packed(self, length: int) -> memoryview:
        """Returns the first `length` ids as int32, which never change; only what is new is converted."""
        done = self._num_packed
        if length > len(self._packed):
            # Views that were given out keep the old array.
            grown = array("i", bytes(4 * 2 * length))
            grown[:done] = self._packed[:done]
            self._packed = grown
        if length > done:
            self._packed[done:length] = array("i", self[done:length])
            self._num_packed = length
        return memoryview(self._packed)[:length]


def common_prefix(a: list[int], b: list[int], limit: int) -> int:
    """Returns how many of the first `limit` tokens are the same, by comparing ever larger slices."""
    same, step = 0, 16
    while same < limit:
        end = min(same + step, limit)
        if a[same:end] == b[same:end]:
            same, step = end, 2 * step
        else:
            limit, step = end - 1, max((end - same) // 2, 1)
    return same
