"""Drafts of the tokens that followed the last ones most often, in the sequence and in earlier answers.

Suffix decoding (Oliaro et al. 2025, "SuffixDecoding", arXiv 2411.04975) pays where one request resembles
another: agents, calls of tools, repeated questions. A longer matching ending gives a longer draft, which ends
where the next token is no longer likely. The paper's suffix tree counts all matches of an ending. Here the
latest few are counted at each lookup, at the same cost for any length.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from trtspec.serving.drafters.source import EARLIER, LOOKUP, DraftSource, Offer
from trtspec.serving.executor import Request
from trtspec.serving.text import Text

SIZES = (8, 3, 1)
"""The lengths of the endings that are looked up, in tokens, the longest first."""
MOST_MATCHES = 4
"""The largest number of matches of an ending that are counted, the latest first."""
MOST_READ = 1024
"""The largest number of tokens that are indexed at once, so that a long sequence delays no other round."""
MOST_KEPT = 100_000
"""The largest number of tokens of earlier answers in all. Each takes some 500 bytes."""
_BETWEEN = -1
"""The separator of two answers in an index."""


class SuffixDraft(NamedTuple):
    """The likely next tokens of a sequence."""

    score: float
    """The expected number of accepted tokens."""
    tokens: list[int]


_NOTHING = SuffixDraft(0.0, [])


class SuffixRules(NamedTuple):
    """The rules that make drafts of matches."""

    depth: int
    """The largest number of tokens of a suffix that are compared."""
    factor: float
    """The largest number of drafted tokens for each token of the suffix."""
    least: float
    """The least probability of the draft up to a token; below it the draft ends before the token."""


class Index:
    """An index of `tokens`, which only grow, in which the endings of a sequence are looked up.

    A match is the position after its last token, so 0 means none. With `is_joined` the tokens are several
    answers, with `_BETWEEN` after each.
    """

    def __init__(self, tokens: list[int], *, is_joined: bool = False) -> None:
        self.tokens, self._is_joined, self._num_read = tokens, is_joined, 0
        self._sizes = tuple(
            (size, dict[tuple[int, ...], int](), array("i", bytes(4 * size))) for size in SIZES
        )

    def read(self, end: int) -> None:
        """Indexes the first `end` tokens, of which at most `MOST_READ` may be new.

        There must be one more. A match is indexed only if a token of the same answer follows it.
        """
        done = self._num_read
        if end <= done:
            return
        tokens, self._num_read = self.tokens, min(end, done + MOST_READ)
        end = self._num_read + 1
        for size, last, before in self._sizes:
            first = size if size > done else done + 1
            for match in range(first, end):
                key = tuple(tokens[match - size : match])
                before.append(last.get(key, 0))
                if tokens[match] != _BETWEEN:
                    last[key] = match

    def follow(self, text: Sequence[int], rules: SuffixRules) -> SuffixDraft:
        """Returns the tokens that followed the longest ending of a sequence most often."""
        for size, last, before in self._sizes:
            if match := last.get(tuple(text[-size:]), 0):
                matches = [match]
                while len(matches) < MOST_MATCHES and (match := before[match]):
                    matches.append(match)
                length = self._common(matches[0], text, size, rules.depth)
                return self._likeliest(matches, text[len(text) - length :], rules)
        return _NOTHING

    def _common(self, match: int, text: Sequence[int], length: int, most: int) -> int:
        """Returns the length of the common ending at a match and of a sequence, at least `length`."""
        tokens, end = self.tokens, len(text)
        most = min(most, match, end)
        if length >= most or tokens[match - length - 1] != text[end - length - 1]:
            return min(length, most)
        if tokens[match - most : match] == text[end - most :]:
            return most
        while length < most and tokens[match - length - 1] == text[end - length - 1]:
            length += 1
        return length

    def _likeliest(self, matches: Sequence[int], ending: Sequence[int], rules: SuffixRules) -> SuffixDraft:
        """Returns the likeliest path after the matches of the whole ending, by counting their next tokens."""
        tokens, length = self.tokens, len(ending)
        most = int(length * rules.factor + 1e-6)
        if length not in SIZES:  # An ending of an indexed size matches as a whole.
            matches = [match for match in matches if tokens[match - length : match] == ending]
        paths = [tokens[match : match + most] for match in matches]
        if self._is_joined:
            paths = [path[: path.index(_BETWEEN)] if _BETWEEN in path else path for path in paths]
        elif matches[0] + most > len(tokens):
            # The end of the sequence cuts a path off, which is repeated.
            cut = (path if len(path) == most else path * (most // len(path) + 1) for path in paths)
            paths = [path[:most] for path in cut]
        found, score, probability = list[int](), 0.0, 1.0
        while paths and probability >= rules.least:
            first, count, same = paths[0], len(paths), 0
            if paths.count(first) == count:
                return SuffixDraft(score + probability * len(first), found + first)
            for column in zip(*paths, strict=False):
                if column.count(column[0]) < count:
                    break
                same += 1
            score, found = score + probability * same, found + first[:same]
            ways = [path[same] for path in paths if len(path) > same]
            way = max(ways, key=ways.count)
            probability *= ways.count(way) / len(ways)
            paths = [path[same:] for path in paths if len(path) > same and path[same] == way]
        return SuffixDraft(score, found)


class Generation:
    """A half of the kept answers, by tenant."""

    def __init__(self) -> None:
        self.indexes: dict[str, Index] = {}
        self.num_answers = self.num_tokens = 0

    def keep(self, tenant: str, tokens: list[int]) -> None:
        index = self.indexes.setdefault(tenant, Index([], is_joined=True))
        index.tokens += [*tokens, _BETWEEN]
        self.num_answers, self.num_tokens = self.num_answers + 1, self.num_tokens + len(tokens)


class CachedAnswers:
    """The latest answers, at most `most_answers` with `MOST_KEPT` tokens. The older half is dropped at once.

    Answers without a tenant are not kept: see `EarlierAnswers` of `trtspec.serving.drafters.lookup`.
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
            # With a limit of one answer there is no older half.
            self._young, self._old = Generation(), young if self._most > 1 else Generation()
        self._young.keep(tenant, tokens)

    def follow(self, tenant: str, text: Sequence[int], rules: SuffixRules) -> SuffixDraft:
        """Returns the better draft of the two halves of the answers to this tenant."""
        best = _NOTHING
        for generation in (self._young, self._old):
            if (index := generation.indexes.get(tenant)) is not None:
                index.read(len(index.tokens) - 1)
                found = index.follow(text, rules)
                best = found if found.score > best.score else best
        return best


class SuffixSource(DraftSource):
    """Proposes from the sequence and from earlier answers. The options are vLLM's `SpeculativeConfig`'s."""

    def __init__(
        self,
        suffix_decoding_max_tree_depth: int,
        suffix_decoding_max_cached_requests: int,
        suffix_decoding_max_spec_factor: float,
        suffix_decoding_min_token_prob: float,
    ) -> None:
        self._answers = CachedAnswers(suffix_decoding_max_cached_requests)
        self._rules = SuffixRules(
            suffix_decoding_max_tree_depth, suffix_decoding_max_spec_factor, suffix_decoding_min_token_prob
        )

    def drafter(self, text: Text, tenant: str = "") -> SuffixDrafter:
        return SuffixDrafter(text, self._answers, tenant, self._rules)


class SuffixDrafter:
    """Proposes the better draft of the sequence and of the earlier answers."""

    pause = 4
    silence = "nothing_found"

    def __init__(self, text: Text, answers: CachedAnswers, tenant: str, rules: SuffixRules) -> None:
        self._text, self._index, self._begin = text, Index(text), len(text)
        self._answers, self._tenant, self._rules = answers, tenant, rules
        self._found: list[int] = []

    def offer(self) -> Offer | None:
        text, rules = self._text, self._rules
        self._index.read(len(text) - 1)
        origin, found = LOOKUP, self._index.follow(text, rules)
        if found.score < rules.depth * rules.factor:  # No score is larger.
            earlier = self._answers.follow(self._tenant, text, rules)
            origin, found = (EARLIER, earlier) if earlier.score > found.score else (origin, found)
        self._found = found.tokens
        return Offer(origin, len(found.tokens)) if found.tokens else None

    async def propose(self, request: Request, deadline: float) -> list[int]:
        return self._found[: request.max_tokens]

    def end(self) -> None:
        self._answers.keep(self._tenant, self._text[self._begin :])
