"""The words of a request as sequences of tokens. Stop words stay in the output, as with NVIDIA's engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from trtspec.serving.errors import RequestError


def read_words(array: npt.NDArray[Any] | None, name: str) -> list[list[int]]:
    """Returns the words of the tensor `name`, int32 [1, 2, length]; raises `RequestError`.

    The first row has the tokens of all words, the second the offset of each word's end, padded with -1
    (`convertWordList` of `inflight_batcher_llm/src/utils.cc`).
    """
    if array is None:
        return []
    tokens, ends = array.reshape(2, -1).tolist()
    words: list[list[int]] = []
    start = 0
    for end in ends[: ends.index(-1)] if -1 in ends else ends:
        if not start < end <= len(tokens):
            raise RequestError(name, f"a list with offsets {ends}", "one with rising offsets")
        words.append(tokens[start:end])
        start = end
    return words


class StopWords:
    """Finds the first stop word in generated tokens."""

    def __init__(self, words: Sequence[Sequence[int]]) -> None:
        self._words = [list(word) for word in words]
        self._tokens: list[int] = []
        self.found = False

    def take(self, new: Sequence[int]) -> list[int]:
        """Returns the new tokens up to the first that completes a word, which sets `found`."""
        taken = []
        for token in new:
            if self.found:
                break
            taken.append(token)
            self._tokens.append(token)
            self.found = any(self._tokens[-len(word) :] == word for word in self._words)
        return taken
