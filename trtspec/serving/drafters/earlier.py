"""Looks up the last tokens of a sequence in earlier answers: a repeated question gets the same answer.

The time of an answer reveals whether its drafts were right. So drafts from an answer are for requests of the
same tenant alone. A request without a tenant leaves nothing and finds nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

Match = tuple[list[int], int]
"""An answer, and the number of its tokens up to the end of a match."""


@dataclass(frozen=True, slots=True)
class _Answer:
    tenant: str
    tokens: list[int]


class EarlierAnswers:
    """The latest answers to all tenants, with `most_tokens` tokens in all.

    It finds the latest occurrence of `size` tokens.
    """

    def __init__(self, size: int, most_tokens: int) -> None:
        self._size, self._most_tokens = size, most_tokens
        self._answers: deque[_Answer] = deque()
        self._places: dict[str, dict[tuple[int, ...], Match]] = {}
        self._num_tokens = 0

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    def keep(self, tenant: str, tokens: list[int]) -> None:
        """Keeps an answer, or its last `most_tokens` tokens; nothing if `tenant` is empty."""
        tokens = tokens[-self._most_tokens :] if self._most_tokens else []
        if not tenant or len(tokens) <= self._size:
            return
        answer, places = _Answer(tenant, tokens), self._places.setdefault(tenant, {})
        for end in range(self._size, len(tokens)):
            places[tuple(tokens[end - self._size : end])] = tokens, end
        self._answers.append(answer)
        self._num_tokens += len(tokens)
        while self._num_tokens > self._most_tokens:
            self._drop(self._answers.popleft())

    def find(self, tenant: str, text: list[int]) -> Match | None:
        """Returns the latest occurrence of the last tokens of a sequence in the answers to this tenant."""
        if len(text) < self._size or (places := self._places.get(tenant)) is None:
            return None
        return places.get(tuple(text[-self._size :]))

    def _drop(self, answer: _Answer) -> None:
        tokens, places = answer.tokens, self._places[answer.tenant]
        self._num_tokens -= len(tokens)
        for end in range(self._size, len(tokens)):
            key = tuple(tokens[end - self._size : end])
            if key in places and places[key][0] is tokens:
                del places[key]
        if not places:
            del self._places[answer.tenant]
