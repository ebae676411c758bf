"""Holds a server's counts since the last step of a roll-out; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from trtspec.client.scrape import Scrape
from trtspec.serving.metrics import COUNTED, STARTED
from trtspec.serving.rollout.state import ARMS

_FIRST = "trtspec:rollout_time_to_first_token_seconds"
_LATER = "trtspec:rollout_time_per_output_token_seconds"
_BY_ARM = (
    "trtspec:rollout_requests",
    "trtspec:rollout_request_errors",
    *(f"{name}_{part}" for name in (_FIRST, _LATER) for part in ("count", "sum", "squares")),
)
_DRAFTS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
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


def counted(scrape: Scrape, model: str) -> dict[str, float]:
    """Returns those counters of a model that the bounds use; counters by arm are called `name{arm}`."""
    found = {name: scrape.total(name, model=model) for name in _OVERALL}
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
        return max(now[name] - since.get(name, 0.0), 0.0)

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
    return RolloutEvidence(arms, drafts("shadow"), drafts("spec_decode"))


def _accepted(probability: float, length: float) -> float:
    """Returns the accepted tokens of a draft of this length, interpolated between whole lengths."""
    whole = int(length)
    total = sum(probability ** (place + 1) for place in range(whole))
    return total + (length - whole) * probability ** (whole + 1)
