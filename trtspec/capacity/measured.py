"""Takes the times of engines from `trtspec bench`, by the number of streams; pure.

A replica with n running sequences is taken to work like a closed loop of n streams. Chandy, Herzog, Woo,
"Parametric analysis of queuing networks" (1975) replace a whole network by such a server.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from trtspec.base.errors import MeasureError
from trtspec.capacity.tempo import Turn
from trtspec.measure.bench.result import ArmFigures, BenchResult, LoadResult

_REPAIR = (
    "measure with trtspec bench --streams 1,4,16: a replica's speed depends on the number of running "
    "sequences"
)


@dataclass(frozen=True, slots=True)
class MeasuredLatency:
    """Lines between the measured points, from the fewest to the most sequences.

    Beyond the last point the last slope continues.
    """

    points: tuple[tuple[int, Turn], ...]
    """The measured iteration at each number of sequences."""
    prompt_token_s: float
    """The time of one token of a prompt, including the request's way to the engines."""

    def turn(self, texts: int, context: float) -> Turn:
        points = self.points
        place = bisect_left([count for count, _ in points], texts)
        if place == 0 or len(points) == 1:
            return points[0][1]
        (fewer, low), (more, high) = points[min(place, len(points) - 1) - 1 :][:2]
        share = (texts - fewer) / (more - fewer)
        seconds = low.seconds + share * (high.seconds - low.seconds)
        drafting = low.drafting_s + share * (high.drafting_s - low.drafting_s)
        pairs = zip_longest(low.survival, high.survival, fillvalue=0.0)
        survival = tuple(before + min(share, 1.0) * (after - before) for before, after in pairs)
        return Turn(max(seconds, low.seconds), survival, max(drafting, 0.0))

    def prompt_s(self, tokens: float, has_drafts: bool) -> float:
        return self.prompt_token_s * tokens


def measured(result: BenchResult, path: Path) -> tuple[MeasuredLatency | None, MeasuredLatency]:
    """Returns the times without drafts and with them; None for the first if there is no plain arm.

    Raises `MeasureError` for a result without levels of streams that were answered.
    """
    levels = [level for level in result.levels if level.load.kind == "streams"]
    if not levels:
        raise MeasureError(path, "has no level of streams", _REPAIR)
    plain, drafts = (of_levels(levels, has_drafts=has_drafts) for has_drafts in (False, True))
    if drafts is None:
        raise MeasureError(path, "has no answers of two tokens or more", _REPAIR)
    return plain, drafts


def asked(result: BenchResult) -> tuple[float, float]:
    """Returns the mean tokens of the measured prompts and answers; 0.0 for none."""
    seen = [level.arms.speculative for level in result.levels]
    answered = sum(figures.requests - figures.failed for figures in seen) or 1
    totals = (sum(figures.input_tokens for figures in seen), sum(figures.output_tokens for figures in seen))
    return totals[0] / answered, totals[1] / answered


def of_levels(levels: Sequence[LoadResult], *, has_drafts: bool) -> MeasuredLatency | None:
    """Returns the times of one arm from its levels of streams; None if it has no answers."""
    ordered = sorted(levels, key=lambda level: level.load.value)
    seen = [(level, level.arms.speculative if has_drafts else level.arms.plain) for level in ordered]
    cycles = [
        _cycle(round(level.load.value), figures) for level, figures in seen if figures and figures.inter_token
    ]
    if not cycles:
        return None
    # The level with the smallest value is right: other work can only add to it.
    token_s = min(cycle.prompt_token_s for cycle in cycles)
    return MeasuredLatency(tuple((cycle.texts, cycle.turn(token_s)) for cycle in cycles), token_s)


@dataclass(frozen=True, slots=True)
class _Cycle:
    """The mean cycle of a stream that sends one request after another."""

    texts: int
    """The number of streams at work."""
    seconds: float
    """The mean time of a request."""
    turns: float
    """The iterations of an answer."""
    first_s: float
    """The time to the first tokens of an answer."""
    prompt: float
    """The tokens of a prompt."""
    survival: tuple[float, ...]
    drafting: float
    """The share of an iteration that its drafts take."""

    @property
    def prompt_token_s(self) -> float:
        """The seconds that one token of a prompt takes: the first token's time without one iteration, over
        the prompt's length.
        """
        turn_s = (self.seconds - self.first_s) / max(self.turns - 1, 1.0)
        return max(self.first_s - turn_s, 0.0) / self.prompt if self.prompt else 0.0

    def turn(self, prompt_token_s: float) -> Turn:
        """In a cycle each stream's prompt is read once, and all streams wait for that."""
        prompts_s = min(self.texts * prompt_token_s * self.prompt, self.seconds / 2)
        turn_s = (self.seconds - prompts_s) / self.turns
        return Turn(turn_s, self.survival, self.drafting * turn_s)


def _cycle(texts: int, figures: ArmFigures) -> _Cycle:
    """Returns the mean of two estimates: from tokens per second, and from single answers.

    In a short block both are slightly wrong. The full window ends in the middle of answers whose prompts were
    read in it, and the last answers have fewer neighbours.
    """
    assert figures.inter_token is not None
    drafts, answer = figures.drafts, _per_request(figures.output_tokens, figures)
    survival: tuple[float, ...] = ()
    if drafts and drafts.acceptance and (count := drafts.acceptance.verifications):
        survival = tuple(accepted / count for accepted in drafts.acceptance.accepted_per_position)
    tokens = 1 + sum(survival)
    # The last iteration gives more tokens than needed, by half of what drafts add.
    turns = (answer + (tokens - 1) / 2) / tokens
    first_s = figures.time_to_first_token.p50 if figures.time_to_first_token else 0.0
    by_tokens = texts * answer / figures.tokens_per_second.value
    by_answers = first_s + figures.inter_token.mean * (answer - 1)
    seconds = (by_tokens + by_answers) / 2
    prompt = _per_request(figures.input_tokens, figures)
    times = figures.inside.round_times  # none without the server's metrics
    drafting = times.draft / (times.draft + times.verify + times.overhead) if times else 0.0
    return _Cycle(texts, seconds, turns, first_s, prompt, survival, drafting)


def _per_request(tokens: int, figures: ArmFigures) -> float:
    answered = figures.requests - figures.failed
    return tokens / answered if answered else 0.0
