"""Drafts of what followed the last tokens most often, in the text itself and in earlier answers.

Suffix decoding (Oliaro et al. 2025, "SuffixDecoding", arXiv 2411.04975) pays where one request resembles
another: agents, calls of tools, questions that come again. Its draft is the longer, the longer the ending is
that stood there before, and ends where what follows is no longer likely. A suffix tree counts all places of
an ending; here the latest few are counted when they are looked up, which costs the same in every text.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from trtspec.serving.drafters.source import EARLIER, LOOKUP, Offer
from trtspec.serving.executor import Request
from trtspec.serving.text import Text

SIZES = (8, 3, 1)
"""The endings that are looked up, in tokens, the longest first."""
MOST_PLACES = 4
"""How many places of an ending are counted, the latest first."""
MOST_READ = 1024
"""How many tokens are read into an index at once, so that a long text holds up nobody."""
MOST_KEPT = 100_000
"""How many tokens of earlier answers are kept in all, of some 500 bytes each."""
_BETWEEN = -1


class SuffixMatch(NamedTuple):
    """The tokens that may follow a text."""

    score: float
    """The expected number of right tokens."""
    tokens: list[int]


_NOTHING = SuffixMatch(0.0, [])


class SuffixRules(NamedTuple):
    """The rules by which drafts are made from suffixes."""

    depth: int
    """The most tokens of a suffix that are compared."""
    factor: float
    """The most tokens that are proposed for each token of the suffix."""
    least: float
    """The least probability that tokens have with those before them; below it the draft ends."""


class Index:
    """The places of `tokens`, which only grow, behind which the endings of a text are looked for.

    A place is the number of tokens before it, so that 0 is none.
    """

    def __init__(self, tokens: list[int], *, is_joined: bool = False) -> None:
        self.tokens, self._is_joined, self._num_read = tokens, is_joined, 0
        self._sizes = tuple(
            (size, dict[tuple[int, ...], int](), array("i", bytes(4 * size))) for size in SIZES
        )

    def read(self, end: int) -> None:
        """Reads the first `end` tokens, as far as they are new, and `MOST_READ` at a time.

        One more must be there; what nothing of the same answer follows is no place.
        """
        done = self._num_read
        if end <= done:
            return
        tokens, self._num_read = self.tokens, min(end, done + MOST_READ)
        end = self._num_read + 1
        for size, last, before in self._sizes:
            first = size if size > done else done + 1
            for place in range(first, end):
                key = tuple(tokens[place - size : place])
                before.append(last.get(key, 0))
                if tokens[place] != _BETWEEN:
                    last[key] = place

    def follow(self, text: Sequence[int], rules: SuffixRules) -> SuffixMatch:
        """Returns what followed the longest ending of a text most often."""
        for size, last, before in self._sizes:
            if place := last.get(tuple(text[-size:]), 0):
                places = [place]
                while len(places) < MOST_PLACES and (place := before[place]):
                    places.append(place)
                length = self._common(places[0], text, size, rules.depth)
                return self._likeliest(places, text[len(text) - length :], rules)
        return _NOTHING

    def _common(self, place: int, text: Sequence[int], length: int, most: int) -> int:
        """Returns how many tokens before a place are the text's last ones, of which `length` are."""
        tokens, end = self.tokens, len(text)
        most = min(most, place, end)
        if length >= most or tokens[place - length - 1] != text[end - length - 1]:
            return min(length, most)
        if tokens[place - most : place] == text[end - most :]:
            return most
        while length < most and tokens[place - length - 1] == text[end - length - 1]:
            length += 1
        return length

    def _likeliest(self, places: Sequence[int], ending: Sequence[int], rules: SuffixRules) -> SuffixMatch:
        """Returns the path that most of those places took that stand behind the whole ending."""
        tokens, length = self.tokens, len(ending)
        most = int(length * rules.factor + 1e-6)
        if length not in SIZES:  # Of a size all places are behind the whole ending.
            places = [place for place in places if tokens[place - length : place] == ending]
        paths = [tokens[place : place + most] for place in places]
        if self._is_joined:
            paths = [path[: path.index(_BETWEEN)] if _BETWEEN in path else path for path in paths]
        elif places[0] + most > len(tokens):
            paths = [path if len(path) == most else _repeated(path, most) for path in paths]
        found, score, probability = list[int](), 0.0, 1.0
        while paths and probability >= rules.least:
            first, count, same = paths[0], len(paths), 0
            if paths.count(first) == count:
                return SuffixMatch(score + probability * len(first), found + first)
            for column in zip(*paths, strict=False):
                if column.count(column[0]) < count:
                    break
                same += 1
            score, found = score + probability * same, found + first[:same]
            ways = [path[same] for path in paths if len(path) > same]
            way = max(ways, key=ways.count)
            probability *= ways.count(way) / len(ways)
            paths = [path[same:] for path in paths if len(path) > same and path[same] == way]
        return SuffixMatch(score, found)


def _repeated(path: list[int], most: int) -> list[int]:
    """Returns a path that the end of the text has cut short, as if it went on from its beginning."""
    return (path * (most // len(path) + 1))[:most]


class Generation:
    """Answers that are kept for a while, by the tenant that they were given to."""

    def __init__(self) -> None:
        self.indexes: dict[str, Index] = {}
        self.num_answers = self.num_tokens = 0

    def keep(self, tenant: str, tokens: list[int]) -> None:
        index = self.indexes.setdefault(tenant, Index([], is_joined=True))
        index.tokens += [*tokens, _BETWEEN]
        self.num_answers, self.num_tokens = self.num_answers + 1, self.num_tokens + len(tokens)


class KeptAnswers:
    """The latest answers, at most so many and `MOST_KEPT` tokens, of which the older half goes at once.

    A tenant without a name has none: see `trtspec.serving.drafters.earlier`.
    """

    def __init__(self, most_answers: int) -> None:
        self._most = most_answers
        self._young, self._old = Generation(), Generation()

    def keep(self, tenant: str, tokens: list[int]) -> None:
        tokens = tokens[-MOST_KEPT // 2 :]
        if not tenant or not self._most or not tokens:
            return
        young = self._young
        if 2 * (young.num_answers + 1) > self._most or 2 * (young.num_tokens + len(tokens)) > MOST_KEPT:
            # A single answer has no older half beside it.
            self._young, self._old = Generation(), young if self._most > 1 else Generation()
        self._young.keep(tenant, tokens)

    def follow(self, tenant: str, text: Sequence[int], rules: SuffixRules) -> SuffixMatch:
        """Returns what followed the longest ending of a text in the answers of this tenant."""
        best = _NOTHING
        for generation in (self._young, self._old):
            if (index := generation.indexes.get(tenant)) is not None:
                index.read(len(index.tokens) - 1)
                found = index.follow(text, rules)
                best = found if found.score > best.score else best
        return best


class SuffixSource:
    """Proposes from the text and from earlier answers; the options are vLLM's `SpeculativeConfig`'s."""

    def __init__(
        self,
        suffix_decoding_max_tree_depth: int,
        suffix_decoding_max_cached_requests: int,
        suffix_decoding_max_spec_factor: float,
        suffix_decoding_min_token_prob: float,
    ) -> None:
        self._answers = KeptAnswers(suffix_decoding_max_cached_requests)
        self._rules = SuffixRules(
            suffix_decoding_max_tree_depth, suffix_decoding_max_spec_factor, suffix_decoding_min_token_prob
        )

    def drafter(self, text: Text, tenant: str = "") -> SuffixDrafter:
        return SuffixDrafter(text, self._answers, tenant, self._rules)

    def reap(self, now: float) -> None:
        """Ends nothing: a lookup answers at once."""


class SuffixDrafter:
    """Proposes the better of what the text and the earlier answers say."""

    pause = 4
    silence = "nothing_found"

    def __init__(self, text: Text, answers: KeptAnswers, tenant: str, rules: SuffixRules) -> None:
        self._text, self._index, self._begin = text, Index(text), len(text)
        self._answers, self._tenant, self._rules = answers, tenant, rules
        self._found: list[int] = []

    def offer(self) -> Offer | None:
        text, rules = self._text, self._rules
        self._index.read(len(text) - 1)
        origin, found = LOOKUP, self._index.follow(text, rules)
        if found.score < rules.depth * rules.factor:  # Nothing is worth more.
            earlier = self._answers.follow(self._tenant, text, rules)
            origin, found = (EARLIER, earlier) if earlier.score > found.score else (origin, found)
        self._found = found.tokens
        return Offer(origin, len(found.tokens)) if found.tokens else None

    async def propose(self, request: Request, deadline: float) -> list[int]:
        return self._found[: request.max_tokens]

    def end(self) -> None:
        self._answers.keep(self._tenant, self._text[self._begin :])
