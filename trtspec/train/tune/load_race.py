"""Decides which K are measured on at a load, and says what the blocks of all of them show; pure.

Each turn measures every K that is left on the same prompts. A K leaves once it is surely slower than the
leader, and the load is settled once the order is clear. Plain decoding stays, since gains are over it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from trtspec.forecast.schedule import LengthGain, LoadGains
from trtspec.measure.bench.result import Interval
from trtspec.measure.bench.sample import Block, RequestSample
from trtspec.measure.bench.statistics import FEWEST_PAIRS, mean

CONFIDENCE, SURE = 0.95, 0.99
"""The level of the intervals, and that of a look at which a K may leave: there are several looks."""
TURNS, TURNS_OF_STARTS = 12, 6
"""The most turns; fewer where each K of each turn is a start of a server."""
FEWEST_LOOKED = 4
"""The turns before the first look."""
ALIKE = 0.05
"""Two K are alike if their ratio is certainly within this much of 1."""


@dataclass(slots=True)
class LoadRace:
    """The blocks of one load; those of a K that left are of the first turns."""

    streams: int
    lengths: tuple[int, ...]
    blocks: dict[int, list[Block]] = field(default_factory=dict)
    left: list[int] = field(default_factory=list)
    is_settled: bool = False
    _begun: Counter[int] = field(default_factory=Counter)
    _slower_than: dict[int, int] = field(default_factory=dict)
    """Each K that left, and the leader of that turn."""

    def __post_init__(self) -> None:
        self.left = list(self.lengths)
        self.blocks = {length: [] for length in self.lengths}

    @property
    def turns(self) -> int:
        return len(self.blocks[0])

    def order(self) -> list[int]:
        """Returns the order of the next turn.

        The first block of a turn reads its prompts, and the others may find them in a cache. So the K begins
        that began least often.
        """
        first = min(self.left, key=lambda length: self._begun[length])
        self._begun[first] += 1
        others = [length for length in self.left if length != first]
        return [first, *others[:: 1 if self.turns % 2 else -1]]

    def judge(self) -> None:
        """Takes out each K that is surely slower than the leader; settles the load if the order is clear."""
        if self.turns < FEWEST_LOOKED:
            return
        leader = max(self.left, key=lambda length: self._ratio(length, 0, CONFIDENCE).value)
        ratios = {length: self._ratio(length, leader, SURE) for length in self.left if length != leader}
        gone = [n for n in self.left if n not in (0, leader) and ratios[n].high < 1]
        self._slower_than.update(dict.fromkeys(gone, leader))
        self.left = [n for n in self.left if n not in gone]
        is_clear = all(
            ratio.high < 1 or (ratio.low > 1 - ALIKE and ratio.high < 1 + ALIKE) for ratio in ratios.values()
        )
        self.is_settled = is_clear and self.turns >= FEWEST_PAIRS

    def gains(self) -> LoadGains:
        """Returns the gains over plain decoding; at least two turns are complete."""
        measured = [length for length, blocks in self.blocks.items() if length and len(blocks) > 1]
        return LoadGains(self.streams, {n: self._gain(n) for n in measured})

    def by_prompt(self, length: int) -> Iterator[tuple[int, float]]:
        """Yields the input tokens of each answer, and how much sooner K had a token of it than no drafts."""
        for own, plain in zip(self.blocks[length], self.blocks[0], strict=False):
            without = {(one.prompt, one.turn): one for one in plain.samples if _is_timed(one)}
            for one in own.samples:
                other = without.get((one.prompt, one.turn))
                if other and _is_timed(one):
                    yield one.input_tokens, _seconds(other) / _seconds(one)

    def _gain(self, length: int) -> LengthGain:
        """Returns the gain of K; that of one that left is by the leader which was faster in the same turns.

        So it is below the leader's, which was measured on in turns that may have been slower for both.
        """
        if not (leader := self._slower_than.get(length)):
            return _gain(self._ratio(length, 0, CONFIDENCE))
        own, other = self._ratio(length, leader, CONFIDENCE), self._gain(leader)
        value = own.value * other.value
        half = math.hypot(math.log(own.high / own.value), math.log(other.high / other.value))
        return LengthGain(value, value * math.exp(-half), value * math.exp(half))

    def _ratio(self, length: int, other: int, confidence: float) -> Interval:
        rates = zip(self.blocks[length], self.blocks[other], strict=False)
        found = mean([one.tokens_per_second / two.tokens_per_second for one, two in rates], confidence)
        assert found is not None, "blocks without tokens are refused"
        return found


def _gain(found: Interval) -> LengthGain:
    return LengthGain(found.value, found.low, found.high)


def _is_timed(sample: RequestSample) -> bool:
    return sample.error is None and sample.output_tokens > 0 and sample.input_tokens > 0


def _seconds(sample: RequestSample) -> float:
    return (sample.ended - sample.sent) / sample.output_tokens


FEWEST_PROMPTS = 12
"""The least number of short and of long prompts of which a gain is told."""


def by_context(race: LoadRace, length: int) -> str | None:
    """Returns how gains of short and long prompts differ; None where they do not certainly.

    Prompts are short up to the median of their tokens. All were served together, so this is the gain of a
    request among others, not of a server that has only such requests.
    """
    found = list(race.by_prompt(length))
    middle = median(tokens for tokens, _ in found) if found else 0
    groups = [[gain for tokens, gain in found if (tokens > middle) == is_long] for is_long in (False, True)]
    if min(map(len, groups)) < FEWEST_PROMPTS:
        return None
    short, long = (mean(group, CONFIDENCE) for group in groups)
    if not short or not long or (short.low <= long.high and long.low <= short.high):
        return None
    return (
        f"at {race.streams} streams K = {length} gains {_gain(short)} with prompts up to {middle:.0f} tokens,"
        f" and {_gain(long)} with longer ones: no engine has K by length, so measure each kind alone"
    )


LEAST_HELD = 0.9
"""The share of the better side's speed that a run across a threshold must have."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """A run that went up and down across a threshold, beside the same run with the K of either side."""

    first: int
    """The number of requests from which the other K holds."""
    before: int
    after: int
    share: LengthGain
    """Its speed, divided by that of the better side."""

    @property
    def holds(self) -> bool | None:
        """False if it is surely slower, and by too much; None if the runs leave that open."""
        if self.share.value < LEAST_HELD and self.share.high < 1:
            return False
        return True if self.share.low >= LEAST_HELD else None

    def __str__(self) -> str:
        verdict = {True: "holds", False: "COLLAPSES", None: "may collapse, which is not clear"}[self.holds]
        return (
            f"across {self.first} requests (K = {self.before} below, {self.after} from there on) the schedule"
            f" {verdict}: {self.share} of the better K's speed"
        )


def crossing(first: int, before: int, after: int, rates: Mapping[int | None, Sequence[float]]) -> Crossing:
    """Returns the result of runs; `rates` has tokens per second of each turn, with None for the schedule."""
    better = max((before, after), key=lambda length: sum(map(math.log, rates[length])))
    shares = [own / other for own, other in zip(rates[None], rates[better], strict=True)]
    found = mean(shares, CONFIDENCE)
    assert found is not None, "there are several turns, and each has tokens"
    return Crossing(first, before, after, _gain(found))
