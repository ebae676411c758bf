"""Counters of the coordinator, and of how well drafts do in vLLM's terms."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from trtspec.serving.drafters.source import ORIGINS
from trtspec.serving.executor import KvReuse
from trtspec.serving.histogram import BETWEEN_TOKENS_S, FIRST_TOKEN_S, REQUEST_S, Histogram, SquaresHistogram
from trtspec.serving.rollout.state import ARMS

FALLBACKS = (
    "draft_at_rest",
    "draft_waits",
    "draft_failed",
    "draft_timed_out",
    "draft_ended",
    "draft_untranslated",
    "nothing_found",
    "policy",
    "num_draft_tokens",
    "rollout",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "guided_decoding_guide_type",
    "sampling",
    "min_tokens",
    "no_room",
    "last_token",
)
"""The reasons why the target goes on alone for a round or burst, where drafts could come from somewhere.

The draft engine rests after failures, waits until the target that it lives in has read the text, failed,
took too long, expects the end of the text, or says what cannot be translated into the target's tokens; the
text has nothing to look up; the policy chose K = 0; the request or the recipe asks for K = 0; the roll-out
has not come to the request; an option of the request forbids drafts (`unsplittable_options`), by its name;
the request is sampled, and the target verifies drafts of greedy ones alone (`sampling`); nothing may end the
text yet (`min_tokens`); an engine has no room for a draft; one token is left, which is the target's own.
"""
FAILURES = ("invalid_request", "refused", "timed_out", "cancelled", "engine_failure", "internal")
"""The reasons why a request has no answer.

It is wrong; there is no place for it; its time limit passed; the client left or the server stops; an engine
failed; this program has a defect.
"""


@dataclass(slots=True)
class SpeculationCounts:
    """The counts of verifications, over one completion or over all of them."""

    num_spec_steps: int = 0
    """The number of steps. A step is one verification of a draft that is not empty."""
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    """Element i counts the steps whose draft token i (from 0) was accepted.

    It is as long as the longest draft.
    """

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
        """Returns the mean number of tokens a verification gives, the target's own included; 0.0 for none."""
        if not self.num_spec_steps:
            return 0.0
        return 1 + self.num_accepted_draft_tokens / self.num_spec_steps

    @property
    def draft_acceptance_rate(self) -> float:
        """Returns the accepted share of all draft tokens, 0 to 1; 0.0 before the first."""
        if not self.num_draft_tokens:
            return 0.0
        return self.num_accepted_draft_tokens / self.num_draft_tokens


@dataclass(slots=True)
class RoundTimes:
    """Sums of seconds over rounds."""

    draft: float = 0.0
    """The time until drafts were there."""
    verification: float = 0.0
    """The time from then until drafts were verified."""
    overhead: float = 0.0
    """The time from then to the next turn.

    The coordinator, Triton and the reader of the text take it. The last round of a completion has none.
    """


@dataclass(slots=True)
class ArmStats:
    """The completions of one arm of a roll-out, and their times in seconds."""

    name: str
    requests: int = 0
    """The number of completions that began."""
    failures: int = 0
    """The number of those that an engine failed, or whose time limit passed."""
    time_to_first_token: SquaresHistogram = field(default_factory=lambda: SquaresHistogram(FIRST_TOKEN_S))
    time_per_output_token: SquaresHistogram = field(
        default_factory=lambda: SquaresHistogram(BETWEEN_TOKENS_S)
    )


@dataclass(slots=True)
class RolloutStats:
    """The counters of a roll-out, by the names of its arms, and where it stands."""

    speculation_share: float = 1.0
    shadow_share: float = 0.0
    is_malformed: bool = False
    arms: dict[str, ArmStats] = field(default_factory=lambda: {name: ArmStats(name) for name in ARMS})
    shadow: SpeculationCounts = field(default_factory=SpeculationCounts)
    """The counts of the drafts that were scored beside plain decoding."""
    shadow_fallbacks: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FALLBACKS, 0))
    """The number of drafts for shadow scoring that did not come, by the reason."""


@dataclass(slots=True)
class Stats:
    """The counters of the coordinator.

    `running`, `waiting`, `longest_wait_s`, `draft_available` and `kv_use` describe the present; the others
    count since the start. Times are in seconds.
    """

    places: int = 0
    """The number of completions that may run."""
    queue_size: int = 0
    """The number of completions that may wait."""
    speculation: SpeculationCounts = field(default_factory=SpeculationCounts)
    """The sum of `by_origin`."""
    by_origin: dict[str, SpeculationCounts] = field(
        default_factory=lambda: {origin: SpeculationCounts() for origin in ORIGINS}
    )
    """Its keys are `ORIGINS`."""
    draft_available: bool = True
    running: int = 0
    """The number of completions that have a place at the engines."""
    waiting: int = 0
    """The number of completions that have no place yet."""
    longest_wait_s: float = 0.0
    kv_use: dict[str, float] = field(default_factory=dict)
    """The share of each engine's KV cache that requests hold, where the engine says it."""
    kv_reuse: dict[str, KvReuse] = field(default_factory=dict)
    """The tokens that requests found in the KV cache, for each engine."""
    rounds: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """The number of rounds by the K that was chosen. Bursts of the target alone count as K = 0."""
    fallbacks: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FALLBACKS, 0))
    """The number of rounds and bursts without a draft, by the reason."""
    round_times: RoundTimes = field(default_factory=RoundTimes)
    """The times of the rounds whose draft was verified, over all completions."""
    ended: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0})
    """The number of completions that ended by `stop` or `length`."""
    failures: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FAILURES, 0))
    """The number of requests without an answer, by the reason."""
    prompt_tokens: int = 0
    generation_tokens: int = 0
    queue_time: Histogram = field(default_factory=lambda: Histogram(REQUEST_S))
    time_to_first_token: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN_S))
    inter_token_latency: Histogram = field(default_factory=lambda: Histogram(BETWEEN_TOKENS_S))
    e2e_latency: Histogram = field(default_factory=lambda: Histogram(REQUEST_S))
    rollout: RolloutStats = field(default_factory=RolloutStats)

    @property
    def draft_failures(self) -> int:
        """Counts the drafts that failed or took too long."""
        return self.fallbacks["draft_failed"] + self.fallbacks["draft_timed_out"]

    def record(self, origin: str, num_draft: int, num_accepted: int) -> None:
        """Adds one verification of a draft of that origin."""
        self.speculation.record(num_draft, num_accepted)
        self.by_origin[origin].record(num_draft, num_accepted)
