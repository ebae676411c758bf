"""The token ids of one completion, which every round hands to the engines again."""

from __future__ import annotations

from array import array
from collections.abc import Iterable


class Text(list[int]):
    """Token ids, none below zero, that only grow, at their end; `largest` is the largest of them.

    A round costs what is new in it and not what the text is long: the same `Text` goes to the engines round
    after round, nothing is copied or checked again, and an engine that meets it a second time knows without
    a look that nothing of what it had has changed. A request's input is what the text holds when the request
    is enqueued; the text may grow while the request runs. Used on one thread at a time, except that slices
    of what is there may be read on any.
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

    def packed(self, length: int) -> memoryview:
        """The first `length` ids as int32, which stay as they are; only what is new is converted."""
        done = self._num_packed
        if length > len(self._packed):
            # What was given out keeps the array that it is part of.
            grown = array("i", bytes(4 * 2 * length))
            grown[:done] = self._packed[:done]
            self._packed = grown
        if length > done:
            self._packed[done:length] = array("i", self[done:length])
            self._num_packed = length
        return memoryview(self._packed)[:length]
