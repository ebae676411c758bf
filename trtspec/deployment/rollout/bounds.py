"""Checks the bounds of a roll-out against a server's counts since its last step; pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from trtspec.client.scrape import Scrape
from trtspec.serving.metrics import COUNTED, STARTED
from trtspec.serving.rollout.state import ARMS, PLAIN, SHADOW, SPECULATE, RolloutState

_FIRST = "trtspec:rollout_time_to_first_token_seconds"
_LATER = "trtspec:rollout_time_per_output_token_seconds"
_BY_ARM = (
    "trtspec:rollout_requests",
    "trtspec:rollout_request_errors",
    *(f"{name}_{part}" for name in (_FIRST, _LATER) for part in ("count", "sum", "squares")),
)
_DRAFTS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
_ENGINE = "spec_decode_of_engine"
_OVERALL = (
    COUNTED,
    STARTED,
    *(f"trtspec:{kind}_{name}" for kind in ("shadow", "spec_decode") for name in _DRAFTS),
)


@dataclass(frozen=True, slots=True)
class MeanTimes:
    """The mean of some times; 0.0 without any."""

    count: int
    """The number of times."""
    mean: float
    """The mean in seconds."""
    error: float
    """The standard error of the mean in seconds."""


@dataclass(frozen=True, slots=True)
class ScoredDrafts:
    """Counts of drafts that were verified, or scored in the shadow."""

    drafts: int
    drafted: int
    """The tokens in the drafts."""
    accepted: int
    """The tokens of the drafts that were accepted."""

    @property
    def share(self) -> float:
        """The accepted share of all drafted tokens."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def per_draft(self) -> float:
        """The tokens of a verification, including the target's own one; 1.0 without any."""
        return 1 + self.accepted / self.drafts if self.drafts else 1.0

    @property
    def per_token(self) -> float:
        """The probability that a token is accepted once all before it were, if that is the same at each
        position.

        A draft of L tokens has a + a^2 + ... + a^L accepted ones (Leviathan et al. 2023, section 3.1). This
        is the a that gives the observed number for the mean L. If lengths differ, it is up to 0.03 too low.
        """
        if not self.drafts or self.accepted >= self.drafted:
            return float(bool(self.accepted))
        length, wanted = self.drafted / self.drafts, self.accepted / self.drafts
        low, high = 0.0, 1.0
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if _accepted(middle, length) < wanted else (low, middle)
        return low


@dataclass(frozen=True, slots=True)
class ArmCounts:
    """The completions of one arm."""

    requests: int
    """The completions that began."""
    failures: int
    """The completions that failed."""
    first_token: MeanTimes
    """The times to the first token."""
    per_token: MeanTimes
    """The times of each token after the first."""


@dataclass(frozen=True, slots=True)
class RolloutEvidence:
    """The counts from which the bounds of a roll-out are judged."""

    arms: Mapping[str, ArmCounts]
    """The counts of completions, by arm."""
    shadow: ScoredDrafts
    """The drafts that were scored and did not change the text."""
    speculation: ScoredDrafts
    """The drafts that were verified."""
    of_engine: ScoredDrafts = ScoredDrafts(0, 0, 0)
    """Those of them that a draft engine or a head made; a lookup may always be right."""


def counted(scrape: Scrape, model: str) -> dict[str, float]:
    """Returns those counters of a model that the bounds use; counters by arm are called `name{arm}`."""
    found = {name: scrape.total(name, model=model) for name in _OVERALL}
    for name in _DRAFTS:
        found[f"trtspec:{_ENGINE}_{name}"] = scrape.total(
            f"trtspec:spec_decode_{name}", model=model, origin="engine"
        )
    for arm in ARMS:
        found |= {f"{name}{{{arm}}}": scrape.total(name, model=model, arm=arm) for name in _BY_ARM}
    return found


def is_of_one_process(before: Mapping[str, float], now: Mapping[str, float]) -> bool:
    """Says whether one process made both counts. If a server reports no start time, a smaller count means a
    new process."""
    return now[STARTED] == before.get(STARTED, 0.0) and now[COUNTED] >= before.get(COUNTED, 0.0)


def between(before: Mapping[str, float], now: Mapping[str, float]) -> RolloutEvidence:
    """Returns the growth since; a server that restarted in between counts from its start."""
    since = before if is_of_one_process(before, now) else {}

    def grown(name: str) -> float:
        # A record of an earlier release lacks a name, and one that a later release wrote has further ones.
        return max(now.get(name, 0.0) - since.get(name, 0.0), 0.0)

    def times(name: str, arm: str) -> MeanTimes:
        count, total, squares = (grown(f"{name}_{part}{{{arm}}}") for part in ("count", "sum", "squares"))
        if not count:
            return MeanTimes(0, 0.0, 0.0)
        mean = total / count
        # A scrape may fall between two updates of the server, so this difference may be negative.
        variance = max(squares / count - mean * mean, 0.0) * count / max(count - 1, 1)
        return MeanTimes(int(count), mean, math.sqrt(variance / count))

    def drafts(kind: str) -> ScoredDrafts:
        return ScoredDrafts(*(int(grown(f"trtspec:{kind}_{name}")) for name in _DRAFTS))

    arms = {
        arm: ArmCounts(
            int(grown(f"trtspec:rollout_requests{{{arm}}}")),
            int(grown(f"trtspec:rollout_request_errors{{{arm}}}")),
            times(_FIRST, arm),
            times(_LATER, arm),
        )
        for arm in ARMS
    }
    return RolloutEvidence(arms, drafts("shadow"), drafts("spec_decode"), drafts(_ENGINE))


def _accepted(probability: float, length: float) -> float:
    """Returns the accepted tokens of a draft of this length, interpolated between whole lengths."""
    whole = int(length)
    total = sum(probability ** (place + 1) for place in range(whole))
    return total + (length - whole) * probability ** (whole + 1)


LEAST_REQUESTS = 100
"""The fewest completions of an arm that anything is concluded from."""
LEAST_ACCEPTANCE = 0.5
"""The least acceptance of a token where all before it were accepted; below it drafts seldom pay."""
MOST_ACCEPTANCE = 0.98
"""The most of its tokens that a draft of an engine has accepted.

One that has more is the target itself, or is not verified.
"""
LEAST_OF_USUAL = 0.5
"""The least acceptance lately, in parts of that before; below it the requests are of another kind."""
MOST_TIME_PER_TOKEN, MOST_FIRST_OUTPUT = 1.05, 1.25
"""The most that a mean time of requests with drafts may be, in times of that of the plain ones.

The first output of a request with drafts has several tokens, and comes later than one alone; so it is held
against the time that plain requests take to as many. It waits for a place and a prompt too, so these times
spread more, and less is promised of them.
"""
MOST_ERRORS = 0.01
"""By how much the share of completions that fail may be above that of the plain ones."""
_ONE_SIDED = 1.645
"""Standard errors to the end of an interval that holds the truth, on this side, in 95 of 100 cases."""
FEWEST_WITHOUT_ERRORS = math.ceil(_ONE_SIDED**2 * (1 - MOST_ERRORS) / MOST_ERRORS)
"""So many of an arm tell that the bound on errors holds, where none of them fails, nor of the other arm."""
_MOST_NEEDED = 100_000


class BoundState(str, Enum):
    """The state of a bound: it holds, it is broken, or it needs more requests to decide."""

    HOLDS = "holds"
    BROKEN = "broken"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Check:
    """One bound and what was found."""

    name: str
    bound: str
    found: str
    verdict: BoundState
    needed: int = 0
    """The number of further requests of the arm that it takes to tell, about."""


def overall(checks: list[Check]) -> BoundState:
    """Returns the worst of the verdicts."""
    verdicts = {check.verdict for check in checks}
    for verdict in (BoundState.BROKEN, BoundState.OPEN):
        if verdict in verdicts:
            return verdict
    return BoundState.HOLDS


def bounds_of(state: RolloutState) -> dict[str, str]:
    """Returns the bounds of a state by their names."""
    none = MeanTimes(0, 0.0, 0.0)
    many = ArmCounts(LEAST_REQUESTS, 0, none, none)
    found = check(
        state, RolloutEvidence(dict.fromkeys(ARMS, many), ScoredDrafts(0, 0, 0), ScoredDrafts(0, 0, 0))
    )
    return {each.name: each.bound for each in found}


def check(
    state: RolloutState,
    evidence: RolloutEvidence,
    lately: tuple[RolloutEvidence, RolloutEvidence] | None = None,
) -> list[Check]:
    """Returns the bounds of a state; none for a state without drafts.

    `lately` has what was counted since the step began until some time, and since then. Times in the shadow
    arm have no bound: its requests are plain ones, with a draft beside each.
    """
    if not state.share:
        return []
    is_shadow = state.mode == SHADOW
    arm, plain = evidence.arms[SHADOW if is_shadow else SPECULATE], evidence.arms[PLAIN]
    other = None if state.share == 1 else plain
    checks = [_requests(arm, other)]
    of_engine = evidence.shadow if is_shadow else evidence.of_engine
    checks.append(_acceptance(drafts_of(state, evidence), of_engine, arm))
    if lately and is_enough(state, lately[0]) and is_enough(state, lately[1]):
        checks.append(_lately(*(drafts_of(state, each) for each in lately)))
    checks.append(_errors(arm, other))
    if not is_shadow and state.share < 1:
        as_many = _until(plain, evidence.speculation.per_draft)
        checks.append(_ratio("time per token", arm.per_token, plain.per_token, MOST_TIME_PER_TOKEN))
        checks.append(_ratio("first output", arm.first_token, as_many, MOST_FIRST_OUTPUT))
    return checks


def drafts_of(state: RolloutState, evidence: RolloutEvidence) -> ScoredDrafts:
    """Returns the drafts that a state makes."""
    return evidence.shadow if state.mode == SHADOW else evidence.speculation


def is_enough(state: RolloutState, evidence: RolloutEvidence) -> bool:
    """Says whether so many requests had drafts that their acceptance tells something."""
    return evidence.arms[state.mode].per_token.count >= LEAST_REQUESTS


def _requests(arm: ArmCounts, other: ArmCounts | None) -> Check:
    """Returns the bound on the number of requests of an arm, and of the plain one."""
    counts = [one.per_token.count for one in (arm, other) if one is not None]
    needed = max(LEAST_REQUESTS - min(counts), 0)
    found = f"{counts[0]} with drafts" + (f", {counts[1]} plain" if other else "")
    bound = f"at least {LEAST_REQUESTS}" + (" of each" if other else "")
    return Check("requests", bound, found, BoundState.OPEN if needed else BoundState.HOLDS, needed)


def _acceptance(drafts: ScoredDrafts, of_engine: ScoredDrafts, arm: ArmCounts) -> Check:
    """Returns the bounds on the conditional acceptance of a token, and on the share of an engine's drafts."""
    name, bound = "acceptance", f"at least {LEAST_ACCEPTANCE:.0%}, at most {MOST_ACCEPTANCE:.0%} of all"
    needed = max(LEAST_REQUESTS - arm.per_token.count, 0)
    if needed or not drafts.drafts:
        found = "too few requests" if needed else "no drafts"
        return Check(name, bound, found, BoundState.OPEN if needed else BoundState.BROKEN, needed)
    found = f"{drafts.per_token:.0%} per token, {drafts.share:.0%} of all drafted"
    if is_perfect := of_engine.share > MOST_ACCEPTANCE:
        found = f"{of_engine.share:.0%} of all that the draft proposed: is it the target itself?"
    holds = drafts.per_token >= LEAST_ACCEPTANCE and not is_perfect
    return Check(name, bound, found, BoundState.HOLDS if holds else BoundState.BROKEN)


def _lately(before: ScoredDrafts, drafts: ScoredDrafts) -> Check:
    """Returns the bound on the acceptance of the latest requests, against that of those before."""
    holds = drafts.share >= LEAST_OF_USUAL * before.share
    found = f"{drafts.share:.0%} of all drafted, {before.share:.0%} before"
    bound = f"at least {LEAST_OF_USUAL:.0%} of that before"
    return Check("acceptance lately", bound, found, BoundState.HOLDS if holds else BoundState.BROKEN)


def _errors(arm: ArmCounts, other: ArmCounts | None) -> Check:
    """Judges the difference between the failing shares of both arms by its interval.

    Without a plain arm, or if it has no requests, it judges the share itself.
    """
    name, bound = "errors", f"at most {MOST_ERRORS:.0%}" + (" above plain" if other else "")
    if arm.requests < LEAST_REQUESTS:
        return Check(name, bound, "too few requests", BoundState.OPEN, FEWEST_WITHOUT_ERRORS - arm.requests)
    others = other.requests if other else 0
    share, usual = _failing(arm), _failing(other) if other else 0.0

    def interval(more: int = 0) -> tuple[float, float]:
        factor = 1 + more / arm.requests
        return _difference(share, factor * arm.requests, usual, factor * others, _ONE_SIDED)

    low, high = interval()
    if others:
        found = f"{share:.1%}, plain {usual:.1%} ({low:+.1%} to {high:+.1%})"
    else:
        found = f"{share:.1%} ({low:.1%} to {high:.1%})"
    verdict = _side(low, high, MOST_ERRORS)
    if verdict is not BoundState.OPEN:
        return Check(name, bound, found, verdict)

    def tells(more: int) -> bool:
        return _side(*interval(more), MOST_ERRORS) is not BoundState.OPEN

    return Check(name, bound, found, verdict, bisect_left(range(_MOST_NEEDED), True, key=tells))


def _difference(
    own: float, count: float, other: float, count_of_other: float, errors: float
) -> tuple[float, float]:
    """Returns the ends of the interval of `own - other`, which are shares of the given numbers.

    `errors` is the number of standard errors to an end. It is Newcombe's interval from two of Wilson's (1998,
    "Interval estimation for the difference between independent proportions", method 10), which is also right
    for few and rare events. A share of no requests counts as exact.
    """
    low, high = _wilson(own, count, errors)
    low_of_other, high_of_other = _wilson(other, count_of_other, errors) if count_of_other else (other, other)
    middle = own - other
    below, above = math.hypot(own - low, high_of_other - other), math.hypot(high - own, other - low_of_other)
    return middle - below, middle + above


def _wilson(share: float, count: float, errors: float) -> tuple[float, float]:
    square = errors * errors / count
    middle = (share + square / 2) / (1 + square)
    half = math.sqrt(square * (share * (1 - share) + square / 4)) / (1 + square)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def _failing(arm: ArmCounts) -> float:
    """Returns the share that failed; it may include requests that began earlier."""
    return min(arm.failures / arm.requests, 1.0) if arm.requests else 0.0


def _until(plain: ArmCounts, tokens: float) -> MeanTimes:
    """Returns the times until plain requests have this many tokens."""
    first, later = plain.first_token, plain.per_token
    mean = first.mean + (tokens - 1) * later.mean
    return MeanTimes(min(first.count, later.count), mean, math.hypot(first.error, (tokens - 1) * later.error))


def _ratio(name: str, arm: MeanTimes, other: MeanTimes, most: float) -> Check:
    """Judges the ratio of two means by its interval, whose ends are those of the ratio's logarithm."""
    bound = f"at most {most:.2f}x plain"
    least = min(arm.count, other.count)
    if least < LEAST_REQUESTS or not arm.mean or not other.mean:
        needed = max(LEAST_REQUESTS - least, 1)
        return Check(name, bound, "too few requests", BoundState.OPEN, needed)
    middle = math.log(arm.mean / other.mean)
    error = math.hypot(arm.error / arm.mean, other.error / other.mean)
    low, high = (math.exp(middle + side * _ONE_SIDED * error) for side in (-1, 1))
    found = f"{math.exp(middle):.2f}x ({low:.2f} to {high:.2f})"
    verdict = _side(low, high, most)
    if verdict is not BoundState.OPEN:
        return Check(name, bound, found, verdict)
    return Check(name, bound, found, verdict, _needed(least, _ONE_SIDED * error, middle - math.log(most)))


def _side(low: float, high: float, most: float) -> BoundState:
    """Returns on which side of a bound an interval is."""
    return BoundState.HOLDS if high <= most else BoundState.BROKEN if low > most else BoundState.OPEN


def _needed(count: int, width: float, distance: float) -> int:
    """Returns how many more requests are needed until an interval of this half-width is as narrow as the
    distance."""
    factor = (width / distance) ** 2 if distance else math.inf
    return int(min(max(count * (factor - 1), 1), _MOST_NEEDED))
