"""Drafts from the sequence itself: the tokens that followed its last tokens before.

Prompt lookup decoding (https://github.com/apoorvumang/prompt-lookup-decoding) pays where an answer quotes its
prompt or repeats itself: edits of code, summaries, tables. If the sequence has no long match, earlier answers
are searched too.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass

from trtspec.serving.drafters.source import EARLIER, LOOKUP, DraftSource, Offer
from trtspec.serving.executor import Request
from trtspec.serving.text import Text

MOST_MATCHES = 32
"""The largest number of matches that are compared, the latest first."""
MOST_READ = 4096
"""The largest number of tokens that are indexed at once, so that a long prompt delays no other round."""

SHORTEST_PAUSE, LONGEST_PAUSE = 4, 32
"""The tokens that the target decodes alone before the next lookup: each new request costs a little."""

Match = tuple[list[int], int]
"""An answer, and the number of its tokens up to the end of a match."""


class LookupSource(DraftSource):
    """Looks up the last `prompt_lookup_max` tokens of a sequence, or fewer, at least `prompt_lookup_min`.

    It keeps `earlier_answers` tokens of earlier answers, in which all `prompt_lookup_max` tokens must match.
    """

    def __init__(self, prompt_lookup_min: int, prompt_lookup_max: int, earlier_answers: int = 0) -> None:
        self._least, self._most = prompt_lookup_min, prompt_lookup_max
        self._earlier = EarlierAnswers(prompt_lookup_max, earlier_answers)

    def drafter(self, text: Text, tenant: str = "") -> LookupDrafter:
        return LookupDrafter(SequenceIndex(text, self._least), self._most, self._earlier, tenant)


class LookupDrafter:
    """Proposes the tokens that followed the longest ending of the sequence that occurred before."""

    silence = "nothing_found"

    def __init__(self, index: SequenceIndex, most: int, earlier: EarlierAnswers, tenant: str) -> None:
        self._index, self._most, self._match = index, most, 0
        self._earlier, self._tenant, self._begin = earlier, tenant, len(index.text)
        self._in_answer: Match | None = None
        self._found_at = len(index.text)

    @property
    def pause(self) -> int:
        """The pause, which grows with the tokens since the last match; the longest after an offer."""
        if self._has_match:
            return LONGEST_PAUSE
        return min(max(SHORTEST_PAUSE, (len(self._index.text) - self._found_at) // 2), LONGEST_PAUSE)

    def offer(self) -> Offer | None:
        text = self._index.text
        self._match, length = self._index.find(self._most)
        self._in_answer = self._earlier.find(self._tenant, text) if length < self._most else None
        if self._has_match:
            self._found_at = len(text)
        if self._in_answer is not None:
            tokens, end = self._in_answer
            return Offer(EARLIER, len(tokens) - end)
        return Offer(LOOKUP, len(text)) if self._match else None

    async def propose(self, request: Request, deadline: float) -> list[int]:
        if self._in_answer is None:
            return self._index.following(self._match, request.max_tokens)
        tokens, end = self._in_answer
        return tokens[end : end + request.max_tokens]

    @property
    def _has_match(self) -> bool:
        return bool(self._match) or self._in_answer is not None

    def end(self) -> None:
        self._earlier.keep(self._tenant, self._index.text[self._begin :])


class SequenceIndex:
    """Finds earlier occurrences of the last tokens of a sequence, at the same cost a token for any length.

    Keys have `size` tokens. A match is the position after its last token, so 0 means none.
    """

    def __init__(self, text: Text, size: int) -> None:
        self.text, self._size = text, size
        self._last: dict[tuple[int, ...], int] = {}
        self._before = array("i", bytes(4 * size))
        """Element i is the match before the match i of the same key."""

    def find(self, most: int) -> tuple[int, int]:
        """Returns the match of the longest ending of at most `most` tokens, and its length, or zeros.

        Among matches of the same length it is the latest.
        """
        self._read()
        match = self._last.get(tuple(self.text[-self._size :]), 0)
        found, longest = 0, 0
        for _ in range(MOST_MATCHES):
            if not match or longest >= most:
                break
            if (length := self._common(match, most)) > longest:
                found, longest = match, length
            match = self._before[match]
        return found, longest

    def following(self, match: int, count: int) -> list[int]:
        """Returns `count` tokens after a match. If the sequence ends before, they are repeated."""
        tokens = self.text[match : match + count]
        while len(tokens) < count:
            tokens += tokens[: count - len(tokens)]
        return tokens

    def _common(self, match: int, most: int) -> int:
        """Returns the length of the common ending at a match and at the end, at most `most`."""
        text, length = self.text, self._size
        end = len(text)
        while length < most and length < match and text[match - length - 1] == text[end - length - 1]:
            length += 1
        return length

    def _read(self) -> None:
        """Indexes the new tokens except the last one, which no token follows yet."""
        text, size, last, before = self.text, self._size, self._last, self._before
        for end in range(len(before), min(len(text), len(before) + MOST_READ)):
            key = tuple(text[end - size : end])
            before.append(last.get(key, 0))
            last[key] = end


@dataclass(frozen=True, slots=True)
class _Answer:
    tenant: str
    tokens: list[int]


class EarlierAnswers:
    """The latest answers to all tenants, with `most_tokens` tokens in all.

    It finds the latest occurrence of `size` tokens: a repeated question gets the same answer. The time of an
    answer reveals whether its drafts were right. So drafts from an answer are for requests of the same tenant
    alone. A request without a tenant leaves nothing and finds nothing.
    """

    def __init__(self, size: int, most_tokens: int) -> None:
        self._size, self._most_tokens = size, most_tokens
        self._answers: deque[_Answer] = deque()
        self._places: dict[str, dict[tuple[int, ...], Match]] = {}
        self.num_tokens = 0

    def keep(self, tenant: str, tokens: list[int]) -> None:
        """Keeps an answer, or its last `most_tokens` tokens; nothing if `tenant` is empty."""
        tokens = tokens[-self._most_tokens :] if self._most_tokens else []
        if not tenant or len(tokens) <= self._size:
            return
        answer, places = _Answer(tenant, tokens), self._places.setdefault(tenant, {})
        for end in range(self._size, len(tokens)):
            places[tuple(tokens[end - self._size : end])] = tokens, end
        self._answers.append(answer)
        self.num_tokens += len(tokens)
        while self.num_tokens > self._most_tokens:
            self._drop(self._answers.popleft())

    def find(self, tenant: str, text: list[int]) -> Match | None:
        """Returns the latest occurrence of the last tokens of a sequence in the answers to this tenant."""
        if len(text) < self._size or (places := self._places.get(tenant)) is None:
            return None
        return places.get(tuple(text[-self._size :]))

    def _drop(self, answer: _Answer) -> None:
        tokens, places = answer.tokens, self._places[answer.tenant]
        self.num_tokens -= len(tokens)
        for end in range(self._size, len(tokens)):
            key = tuple(tokens[end - self._size : end])
            if key in places and places[key][0] is tokens:
                del places[key]
        if not places:
            del self._places[answer.tenant]
