"""Drafts from the text itself: the tokens that followed its last tokens earlier.

Prompt lookup decoding (https://github.com/apoorvumang/prompt-lookup-decoding) pays where an answer quotes its
prompt or repeats itself: edits of code, summaries, tables. The index is of one text, and goes with it; what
it does not find may be in earlier answers, where they are kept.
"""

from __future__ import annotations

from array import array

from trtspec.serving.drafters.earlier import EarlierAnswers, Place
from trtspec.serving.drafters.source import EARLIER, LOOKUP, Offer
from trtspec.serving.executor import Request
from trtspec.serving.text import Text

MOST_PLACES = 32
"""How many places of the last tokens are compared, the latest first."""
MOST_READ = 4096
"""How many tokens are read into the index at once, so that a long prompt holds up nobody."""

SHORTEST_PAUSE, LONGEST_PAUSE = 4, 32
"""Tokens that the target decodes alone before the next look: each new request costs a little."""


class LookupSource:
    """Looks up the last `prompt_lookup_max` tokens of a text, or fewer, at least `prompt_lookup_min`.

    So many tokens of `earlier_answers` are kept, none with 0; `prompt_lookup_max` of the last tokens must
    stand in one.
    """

    def __init__(self, prompt_lookup_min: int, prompt_lookup_max: int, earlier_answers: int = 0) -> None:
        self._least, self._most = prompt_lookup_min, prompt_lookup_max
        self._earlier = EarlierAnswers(prompt_lookup_max, earlier_answers)

    def drafter(self, text: Text, tenant: str = "") -> LookupDrafter:
        return LookupDrafter(TextIndex(text, self._least), self._most, self._earlier, tenant)

    def reap(self, now: float) -> None:
        """Ends nothing: a lookup answers at once."""


class LookupDrafter:
    """Proposes what followed the longest of the text's endings that stood there before."""

    silence = "nothing_found"

    def __init__(self, index: TextIndex, most: int, earlier: EarlierAnswers, tenant: str) -> None:
        self._index, self._most, self._place = index, most, 0
        self._earlier, self._tenant, self._begin = earlier, tenant, len(index.text)
        self._in_answer: Place | None = None
        self._since = len(index.text)

    @property
    def pause(self) -> int:
        """Returns more, the longer nothing was found, since new text goes on; the most behind an offer."""
        if self._found:
            return LONGEST_PAUSE
        return min(max(SHORTEST_PAUSE, (len(self._index.text) - self._since) // 2), LONGEST_PAUSE)

    def offer(self) -> Offer | None:
        text = self._index.text
        self._place, length = self._index.find(self._most)
        self._in_answer = self._earlier.find(self._tenant, text) if length < self._most else None
        if self._found:
            self._since = len(text)
        if self._in_answer is not None:
            tokens, place = self._in_answer
            return Offer(EARLIER, len(tokens) - place)
        return Offer(LOOKUP, len(text)) if self._place else None

    async def propose(self, request: Request, deadline: float) -> list[int]:
        if self._in_answer is None:
            return self._index.following(self._place, request.max_tokens)
        tokens, place = self._in_answer
        return tokens[place : place + request.max_tokens]

    @property
    def _found(self) -> bool:
        return bool(self._place) or self._in_answer is not None

    def end(self) -> None:
        self._earlier.keep(self._tenant, self._index.text[self._begin :])


class TextIndex:
    """Finds where the last tokens of a text stood before; reading a token costs the same in every text.

    `size` tokens are the key. Places are counted by the tokens before their end, so that 0 is none;
    `_before[place]` is the previous place of the same key.
    """

    def __init__(self, text: Text, size: int) -> None:
        self.text, self._size = text, size
        self._last: dict[tuple[int, ...], int] = {}
        self._before = array("i", bytes(4 * size))

    def find(self, most: int) -> tuple[int, int]:
        """Returns where the longest ending of at most `most` tokens stood before, and its length, or zeros.

        Among endings of the same length the latest place counts.
        """
        self._read()
        place = self._last.get(tuple(self.text[-self._size :]), 0)
        found, longest = 0, 0
        for _ in range(MOST_PLACES):
            if not place or longest >= most:
                break
            if (length := self._common(place, most)) > longest:
                found, longest = place, length
            place = self._before[place]
        return found, longest

    def following(self, place: int, count: int) -> list[int]:
        """Returns `count` tokens behind a place, as if a text that repeats itself at its end went on so."""
        tokens = self.text[place : place + count]
        while len(tokens) < count:
            tokens += tokens[: count - len(tokens)]
        return tokens

    def _common(self, place: int, most: int) -> int:
        """Returns how many tokens before the place and before the end are the same, up to `most`."""
        text, length = self.text, self._size
        end = len(text)
        while length < most and length < place and text[place - length - 1] == text[end - length - 1]:
            length += 1
        return length

    def _read(self) -> None:
        """Reads what is new in the text but for its last token, which nothing follows yet."""
        text, size, last, before = self.text, self._size, self._last, self._before
        for end in range(len(before), min(len(text), len(before) + MOST_READ)):
            key = tuple(text[end - size : end])
            before.append(last.get(key, 0))
            last[key] = end
