"""Tells how fast a replica answers, by the number of its running sequences: measured or forecast; pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Protocol

from trtspec.base.errors import MeasureError
from trtspec.capacity.demand import Lengths
from trtspec.forecast.outlook import ForecastPair
from trtspec.forecast.roofline import BatchLoad, Network, round_costs, step
from trtspec.forecast.speedup import tokens_per_round
from trtspec.measure.bench.result import ArmFigures, BenchResult, LoadResult

SHARE = 0.95
"""The share of requests that must meet a bound."""
MEASURED_SPREAD = 0.03
"""The relative error of measured times: two measurements of one engine differ by as much."""
_DEVIATIONS = NormalDist().inv_cdf(SHARE)


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """The times of a request while a replica has a constant number of running sequences, in seconds."""

    first: float
    """The mean time to the first token of a request that finds a free slot."""
    first_p95: float
    token: float
    """The mean time of a token after the first."""
    token_p95: float
    """Over requests, of which each has one mean time."""
    draft_length: float = 0.0
    """The draft tokens of a round; 0.0 if the sequences get no drafts, or if it is not known."""

    def answer(self, tokens: float) -> float:
        """Returns the mean time of a request with an answer of so many tokens."""
        return self.first + self.token * max(tokens - 1, 0.0)

    def prolonged(self, factor: float) -> RequestTimes:
        first, first_p95, token, token_p95, length = astuple(self)
        return RequestTimes(factor * first, factor * first_p95, factor * token, factor * token_p95, length)


class ReplicaSpeed(Protocol):
    """The speed of a replica's engines."""

    @property
    def spread(self) -> float:
        """The relative error of all times."""
        ...

    def at(self, sequences: int, lengths: Lengths) -> RequestTimes:
        """Returns the times of a request beside which `sequences - 1` others run, all of these lengths."""
        ...


@dataclass(frozen=True, slots=True)
class MeasuredSpeed:
    """The speed that `trtspec bench --streams` has measured, for requests like the measured ones.

    A replica with n running sequences is taken to work like a closed loop of n streams. Chandy, Herzog, Woo,
    "Parametric analysis of queuing networks" (1975) replace a whole network by such a server.
    """

    points: tuple[tuple[int, RequestTimes], ...]
    """The times at each measured number of streams, the fewest first."""
    spread: float = MEASURED_SPREAD

    def at(self, sequences: int, lengths: Lengths) -> RequestTimes:
        """Takes straight lines between the points, and beyond the last one the last slope."""
        points = self.points
        place = bisect_left([count for count, _ in points], sequences)
        if place == 0 or len(points) == 1:
            return points[0][1]
        (fewer, low), (more, high) = points[min(place, len(points) - 1) - 1 :][:2]
        share = (sequences - fewer) / (more - fewer)
        between = (max(a, a + share * (b - a)) for a, b in zip(astuple(low), astuple(high), strict=True))
        return RequestTimes(*between)


def measured_speeds(result: BenchResult, path: Path) -> tuple[MeasuredSpeed | None, MeasuredSpeed]:
    """Returns the speed without drafts and with them; None for the first if there is no plain arm.

    Raises `MeasureError` for a result without levels of streams that were answered.
    """
    levels = [level for level in result.levels if level.load.kind == "streams"]
    if not levels:
        problem = (
            "measure with trtspec bench --streams 1,4,16: speed depends on the number of running sequences"
        )
        raise MeasureError(path, "has no level of streams", problem)
    plain, drafts = (speed_of_levels(levels, has_drafts=has_drafts) for has_drafts in (False, True))
    if drafts is None:
        raise MeasureError(path, "has no answers of two tokens or more")
    return plain, drafts


def speed_of_levels(levels: Sequence[LoadResult], *, has_drafts: bool) -> MeasuredSpeed | None:
    """Returns the speed of one arm from its levels of streams; None if it has no answers."""
    points: dict[int, RequestTimes] = {}
    spread = MEASURED_SPREAD
    for level in levels:
        figures = level.arms.speculative if has_drafts else level.arms.plain
        if figures and figures.inter_token and figures.time_to_first_token:
            points[round(level.load.value)] = _times(round(level.load.value), figures)
            rate = figures.tokens_per_second
            spread = max(spread, (rate.high - rate.low) / (2 * rate.value))
    return MeasuredSpeed(tuple(sorted(points.items())), spread) if points else None


def _times(streams: int, figures: ArmFigures) -> RequestTimes:
    """Returns the times at a level.

    A whole answer is the mean of two estimates: from tokens per second, and from single answers. In a short
    block both are slightly wrong. The full window ends in the middle of answers whose prompts were read in
    it, and the last answers have fewer neighbours.

    A stream asks at the end of an iteration. A request that comes at any moment waits for the rest of one
    more, so that its 95th percentile is at most twice the median of streams. Their own one is too long, since
    all streams begin at once.
    """
    assert figures.inter_token is not None
    assert figures.time_to_first_token is not None
    first, after = figures.time_to_first_token.p50, figures.inter_token
    tokens = max(figures.output_tokens / max(figures.requests - figures.failed, 1), 2.0)
    by_rate = streams * tokens / figures.tokens_per_second.value
    answer = (by_rate + first + after.mean * (tokens - 1)) / 2
    token = max(answer - first, 0.0) / (tokens - 1)
    drafts = figures.drafts.acceptance if figures.drafts else None
    length = drafts.drafted / drafts.verifications if drafts and drafts.verifications else 0.0
    return RequestTimes(first, 2 * first, token, token * after.p95 / after.mean, length)


@dataclass(frozen=True, slots=True)
class ForecastSpeed:
    """The speed of a pair whose engines need not be built yet, by the roofline of `trtspec.forecast`."""

    pair: ForecastPair
    acceptance: float = 0.0
    """The probability that a draft token is accepted if all before it were."""
    length: int | None = None
    """The length of all drafts; None for the one with the largest goodput at each load, which may be 0 and
    which the adaptive policy learns (`trtspec.serving.adaptive`)."""

    @property
    def spread(self) -> float:
        return self.pair.error

    def at(self, sequences: int, lengths: Lengths) -> RequestTimes:
        """Returns the times if prompts come evenly: each reading prolongs an iteration of all sequences."""
        load, longest = BatchLoad(sequences, max(round(lengths.context), 1)), self.pair.longest
        tried = range(longest + 1) if self.length is None else (min(self.length, longest),)
        rounds = [(self._seconds(load, length), self._tokens(length), length) for length in tried]
        seconds, tokens, length = max(rounds, key=lambda one: one[1] / one[0])
        # The last iteration gives more tokens than needed, by half of what drafts add.
        count = max((lengths.output + (tokens - 1) / 2) / tokens, 1.0)
        read = self._prompt_seconds(lengths.input, has_drafts=length > 0)
        longest_read = self._prompt_seconds(lengths.longest_input(SHARE), has_drafts=length > 0)
        others = (sequences - 1) * read
        token = ((count - 1) * seconds + others) / max(lengths.output - 1, 1.0)
        # A request comes at any moment of an iteration, and the next one reads its prompt.
        first = 1.5 * seconds + read
        first_p95 = 2 * seconds + longest_read + (read if sequences > 1 else 0.0)
        slowest = 1 + _DEVIATIONS * math.sqrt(self._variability(length) / count)
        return RequestTimes(first, first_p95, token, token * slowest, length)

    def _tokens(self, length: int) -> float:
        """Returns the mean tokens of a round with a draft of this length."""
        return tokens_per_round([self.acceptance] * length)

    def _variability(self, length: int) -> float:
        """Returns the squared coefficient of variation of the tokens of a round."""
        survival = [self.acceptance**place for place in range(1, length + 1)]
        squares = sum((2 * place + 1) * share for place, share in enumerate(survival))
        return (squares - sum(survival) ** 2) / self._tokens(length) ** 2

    def _seconds(self, load: BatchLoad, length: int) -> float:
        pair = self.pair
        plain = step(pair.target, pair.chip, load).seconds
        if not length:
            return plain
        costs = round_costs(pair.target, pair.draft, pair.chip, load, length, pair.overhead_s)
        return plain * costs.of(length)

    def _prompt_seconds(self, tokens: float, *, has_drafts: bool) -> float:
        """Reading a prompt shares the weights with the running step, so only its multiplications are added.

        In fact a step that waits for memory has multiplications to spare, so this is rather too slow.
        """
        networks = [self.pair.target, *([self.pair.draft] if self.pair.draft and has_drafts else [])]
        return sum(self._reading(network, max(round(tokens), 1)) for network in networks)

    def _reading(self, network: Network, rows: int) -> float:
        """Returns the seconds of a prompt's multiplications, and of its ranks' communication, beyond those of
        one row."""
        load, chip = BatchLoad(1, rows // 2), self.pair.chip
        whole, one = (step(network, chip, load, count) for count in (rows, 1))
        attention = rows * load.context * network.attention_flops / network.tensor / chip.flops_16
        return whole.multiplying_s + attention / chip.share.flops + whole.rest_s - one.rest_s
