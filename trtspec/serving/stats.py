"""The counters and histograms of the coordinator and of its drafts, in vLLM's terms."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import accumulate

from trtspec.serving.drafters.source import ORIGINS
from trtspec.serving.executor import KvReuse
from trtspec.serving.rollout.state import ARMS

FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
"""vLLM's buckets of the time to the first token (`vllm/v1/metrics/loggers.py`)."""
BETWEEN_TOKENS_S = (
    # Rounds take milliseconds, for which vLLM has only 0.01, 0.025 and 0.05.
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.035, 0.05),
    *(0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_S = (
    # A request that finds a free slot waits for nothing, which in vLLM's first bucket would look like 150 ms.
    *(0.001, 0.01, 0.05, 0.1, 0.2),
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)


class Histogram:
    """Counts values in buckets whose inclusive upper `bounds` ascend; `sum` is their sum.

    The buckets are fixed, as in Prometheus. Adding a value takes less than a microsecond.
    """

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.sum = bounds, 0.0
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[int]:
        """Returns the number of values up to each bound, and last the number of all values."""
        return list(accumulate(self._counts[:]))


class SquaresHistogram(Histogram):
    """A histogram with the sum of squares of its values, for the standard error of their mean."""

    __slots__ = ("squares",)

    def __init__(self, bounds: tuple[float, ...]) -> None:
        super().__init__(bounds)
        self.squares = 0.0

    def observe(self, value: float) -> None:
        super().observe(value)
        self.squares += value * value


FALLBACKS = {
    "draft_at_rest": "the draft engine rests after failures",
    "draft_waits": "a draft inside the target waits until the target has computed the sequence",
    "draft_failed": "the draft engine failed",
    "draft_timed_out": "the draft engine was too slow",
    "draft_ended": "the draft engine proposed the end",
    "draft_untranslated": "the proposal has no translation into the target's tokens",
    "nothing_found": "look-ups found nothing",
    "policy": "a step with drafts takes longer here just now",
    "num_draft_tokens": "the request or the recipe asks for none",
    "rollout": "the roll-out gives this request no drafts yet",
    # These options forbid drafts (`unsplittable_options`).
    "repetition_penalty": "repetition_penalty forbids drafts",
    "presence_penalty": "presence_penalty forbids drafts",
    "frequency_penalty": "frequency_penalty forbids drafts",
    "guided_decoding_guide_type": "the engine follows no grammar under drafts",
    "sampling": "the engine verifies drafts of greedy requests alone",
    "min_tokens": "no end token may come yet",
    "no_room": "an engine has no room for a draft",
    "last_token": "the last token is the target's own",
}
"""The reasons why a round or burst of a completion that has a drafter has no draft, in words."""
NO_PROPOSAL = "draft"
"""Stands for the reasons why a draft engine proposes nothing, which it counts itself."""


def why_undrafted(speculation: str) -> str:
    """Returns the words for the model's output `speculation`, such as `off: policy`; "" for ""."""
    reasons = speculation.removeprefix("off: ").split(", ") if speculation else ()
    unknown = "the draft engine proposed nothing; trtspec:fallbacks_total counts why"
    return "; ".join(dict.fromkeys(FALLBACKS.get(reason, unknown) for reason in reasons))


FAILURES = (
    "invalid_request",
    "refused",  # The queue is full, or the wait in it too long.
    "timed_out",
    "cancelled",  # The client left, or the server stops.
    "not_finite",  # The target's logits are NaN or infinite.
    "engine_failure",
    "internal",  # This program has a defect.
)
"""The reasons why a request fails."""


@dataclass(slots=True)
class SpeculationCounts:
    """The counts of verifications, of one completion or of all."""

    num_spec_steps: int = 0
    """The number of verifications of drafts that are not empty."""
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    """Element i counts verifications that accepted token i, from 0. It is as long as the longest draft."""

    def record(self, num_draft: int, num_accepted: int) -> None:
        """Adds one verification, which accepted `num_accepted` of `num_draft` tokens."""
        self.num_spec_steps += 1
        self.num_draft_tokens += num_draft
        self.num_accepted_draft_tokens += num_accepted
        positions = self.accepted_per_position
        if len(positions) < num_draft:
            positions.extend([0] * (num_draft - len(positions)))
        for position in range(num_accepted):
            positions[position] += 1

    @property
    def mean_acceptance_length(self) -> float:
        """The mean number of tokens of a verification, the target's own included; 1.0 before the first."""
        return 1 + self.num_accepted_draft_tokens / max(self.num_spec_steps, 1)

    @property
    def draft_acceptance_rate(self) -> float:
        """The accepted share of all draft tokens, 0 to 1; 0.0 before the first."""
        if not self.num_draft_tokens:
            return 0.0
        return self.num_accepted_draft_tokens / self.num_draft_tokens


@dataclass(slots=True)
class RoundTimes:
    """Sums of seconds over rounds."""

    draft: float = 0.0
    """The time from the begin of a round to its draft."""
    verification: float = 0.0
    """The time from the draft to its verification."""
    overhead: float = 0.0
    """The time from the verification to the next round.

    The coordinator, Triton and the client take it. The last round of a completion has none.
    """


@dataclass(slots=True)
class ArmStats:
    """The counters of one arm of a roll-out. Times are in seconds."""

    name: str
    requests: int = 0
    """The number of completions that were given this arm."""
    failures: int = 0
    """The number of those that an engine failed, or that timed out, in the queue too."""
    time_to_first_token: SquaresHistogram = field(default_factory=lambda: SquaresHistogram(FIRST_TOKEN_S))
    time_per_output_token: SquaresHistogram = field(
        default_factory=lambda: SquaresHistogram(BETWEEN_TOKENS_S)
    )


@dataclass(slots=True)
class RolloutStats:
    """The state and the counters of a roll-out."""

    speculation_share: float = 1.0
    shadow_share: float = 0.0
    is_malformed: bool = False
    """True while the file of the roll-out is malformed."""
    arms: dict[str, ArmStats] = field(default_factory=lambda: {name: ArmStats(name) for name in ARMS})
    shadow: SpeculationCounts = field(default_factory=SpeculationCounts)
    """The counts of the drafts that were scored beside plain decoding."""
    shadow_fallbacks: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FALLBACKS, 0))
    """The number of rounds without a shadow draft, by reason."""


@dataclass(slots=True)
class Stats:
    """The counters of the coordinator.

    `running`, `waiting`, `longest_wait_s`, `draft_available` and `kv_use` describe the present; the others
    count since the start. Times are in seconds.
    """

    places: int = 0
    """The largest number of running completions."""
    queue_size: int = 0
    """The largest number of waiting completions."""
    by_origin: dict[str, SpeculationCounts] = field(
        default_factory=lambda: {origin: SpeculationCounts() for origin in ORIGINS}
    )
    """The counts of the drafts of each of `ORIGINS`."""
    draft_available: bool = True
    """False while the draft engine rests after failures."""
    running: int = 0
    """The number of completions that have a slot."""
    waiting: int = 0
    """The number of completions that have no slot yet."""
    longest_wait_s: float = 0.0
    kv_use: dict[str, float] = field(default_factory=dict)
    """The share of the KV cache that requests hold, for each engine that reports it."""
    kv_reuse: dict[str, KvReuse] = field(default_factory=dict)
    """The reuse of prefixes in the KV cache, for each engine that reports it."""
    rounds: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """The number of rounds by the K that was chosen. Bursts of the target alone count as K = 0."""
    fallbacks: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FALLBACKS, 0))
    """The number of rounds and bursts without a draft, by reason."""
    round_times: RoundTimes = field(default_factory=RoundTimes)
    """The times of the rounds whose draft was verified, over all completions."""
    ended: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0})
    """The number of completions that ended by `stop` or `length`."""
    failures: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FAILURES, 0))
    """The number of failed requests, by reason."""
    prompt_tokens: int = 0
    generation_tokens: int = 0
    queue_time: Histogram = field(default_factory=lambda: Histogram(REQUEST_S))
    time_to_first_token: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN_S))
    inter_token_latency: Histogram = field(default_factory=lambda: Histogram(BETWEEN_TOKENS_S))
    e2e_latency: Histogram = field(default_factory=lambda: Histogram(REQUEST_S))
    rollout: RolloutStats = field(default_factory=RolloutStats)
