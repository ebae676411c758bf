"""Holds the result of a run of `bench`, and writes it as JSON.

Times are in seconds, rates are per second, shares are 0 to 1. None means not measured or not known; zero
means a measured zero.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trtspec.base.errors import MeasureError
from trtspec.base.files import write_atomically
from trtspec.forecast.rules import MeasuredRun

if TYPE_CHECKING:
    from pydantic import TypeAdapter


def measured_run(result: BenchResult) -> MeasuredRun:
    """Returns the measurement at the lowest load, and the verdict on all loads.

    GPU use and tokens per second are those without drafts, if that was measured.
    """
    if not result.levels:
        return MeasuredRun()
    level = min(result.levels, key=lambda level: level.load.value)
    drafts, alone = level.arms.speculative.drafts, level.arms.plain or level.arms.speculative
    acceptance = drafts.acceptance if drafts and drafts.acceptance.verifications else None
    answered = alone.requests - alone.failed
    return MeasuredRun(
        answer_tokens=alone.output_tokens / answered if answered else None,
        gpu_use=alone.inside.gpu_use,
        acceptance=acceptance.by_position if acceptance else (),
        accepted=acceptance.rate if acceptance else None,
        tokens_per_second=level.arms.plain.tokens_per_second.value if level.arms.plain else None,
        decision=result.verdict.decision,
        words=result.verdict.words,
    )


SCHEMA_VERSION = 1
"""Rises when an older reader would misread a result; new keys alone do not change it."""

RESULT = "result.json"
"""The name of the file in the folder of a run."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with the ends of its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Percentiles:
    """The distribution of times."""

    count: int
    """The number of times."""
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Targets:
    """The latencies that a request must meet to count for goodput; None sets no limit."""

    time_to_first_token: float | None = None
    inter_token: float | None = None
    end_to_end: float | None = None


@dataclass(frozen=True, slots=True)
class Goodput:
    """The requests that met the targets."""

    requests_per_second: float
    share: float
    """Their share of all requests, failed ones included."""


@dataclass(frozen=True, slots=True)
class DraftAcceptance:
    """Counts of draft tokens over a number of verifications."""

    verifications: int
    drafted: int
    accepted: int
    accepted_per_position: tuple[int, ...]
    """Item i counts the drafts whose token i, from 0, was accepted."""

    @property
    def rate(self) -> float:
        """Accepted divided by drafted tokens; 0.0 if nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_verification(self) -> float:
        """Mean tokens of a verification, including the target's own one; 0.0 for none."""
        return 1 + self.accepted / self.verifications if self.verifications else 0.0

    @property
    def by_position(self) -> tuple[float, ...]:
        """For each position, the probability that its token is accepted if all tokens before it were.

        Each draft counts as having every position. So drafts that were cut short (at the end of an answer, by
        a policy) make it too low, by at most the share of `shortened`.
        """
        reached = (self.verifications, *self.accepted_per_position)
        return tuple(
            now / before if before else 0.0
            for before, now in zip(reached, self.accepted_per_position, strict=False)
        )

    @property
    def shortened(self) -> float:
        """The share of positions that drafts lacked; 0.0 if each had the full length."""
        full = self.verifications * len(self.accepted_per_position)
        return 1 - self.drafted / full if full else 0.0


@dataclass(frozen=True, slots=True)
class MeanRoundTimes:
    """Mean seconds of a round: draft, verification, and the rest."""

    draft: float
    verify: float
    overhead: float


@dataclass(frozen=True, slots=True)
class DraftFigures:
    """The acceptance of an arm's drafts."""

    source: Literal["answers", "metrics"]
    """The origin of the counts.

    Those of "metrics" come from the server and include other clients' requests in that time.
    """
    acceptance: DraftAcceptance
    by_category: dict[str, DraftAcceptance] = field(default_factory=dict)
    """Counts by category of prompts; empty if the counts come from metrics."""


@dataclass(frozen=True, slots=True)
class Inside:
    """The reports of the server's metrics and the GPU while an arm was measured."""

    round_times: MeanRoundTimes | None = None
    kv_reuse: float | None = None
    """The share of prompt tokens that were found in the target's KV cache."""
    gpu_use: float | None = None
    """The mean share of time in which the GPUs were busy, by NVML."""


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """The measurements of one arm at one load, without the warm-up.

    Latencies are those of the requests without an error.
    """

    requests: int
    """The number of requests, including those with an error."""
    errors: dict[str, int]
    """The number of requests without a whole answer, by kind of error."""
    seconds: float
    """The time in which the requests ran, over all blocks."""
    input_tokens: int
    output_tokens: int
    tokens_per_second: Interval
    """Without a confidence interval, its ends are the smallest and the largest value of the blocks."""
    requests_per_second: float
    time_to_first_token: Percentiles | None = None
    """From the time a request was due to its first text."""
    inter_token: Percentiles | None = None
    """The mean time of a token after the first text, one value per request."""
    between_pieces: Percentiles | None = None
    """From one piece of text to the next, for any number of tokens in it."""
    end_to_end: Percentiles | None = None
    """From the time a request was due to its end."""
    goodput: Goodput | None = None
    drafts: DraftFigures | None = None
    inside: Inside = field(default_factory=Inside)
    blocks: tuple[float, ...] = ()
    """The tokens per second of each block."""
    block_times: tuple[float, ...] = ()
    """The mean time of a request of each block, 0.0 without an answer; empty in older results."""
    tokens_told: bool = True
    """False if the server counts no tokens; pieces of text are counted then."""

    @property
    def failed(self) -> int:
        return sum(self.errors.values())


@dataclass(frozen=True, slots=True)
class OfferedLoad:
    """A load on a server."""

    kind: Literal["streams", "rate"]
    """"streams": each client sends its next request after its answer. "rate": requests come without waiting
    for answers."""
    value: float
    """The number of clients, or requests per second."""

    def __str__(self) -> str:
        if self.kind == "streams":
            return f"{self.value:g} stream" + ("" if self.value == 1 else "s")
        return f"{self.value:g} requests/s"


@dataclass(frozen=True, slots=True)
class Arms:
    """The server with drafts, and without."""

    speculative: ArmFigures
    plain: ArmFigures | None = None
    """None if no server could run without drafts."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """One load, measured in both arms."""

    load: OfferedLoad
    arms: Arms
    speedup: Interval | None = None
    """Tokens per second with drafts divided by those without.

    At a rate, the mean time of a request without drafts divided by that with drafts. None without a plain
    arm, with fewer than six pairs, with a block that has no answer, if an arm failed more than 1 % of the
    requests of a rate, and for streams if a server counts no tokens.
    """
    pairs: tuple[tuple[float, float], ...] = ()
    """The compared values of each pair of blocks, with drafts and without."""


@dataclass(frozen=True, slots=True)
class BenchedServer:
    """The server that was measured."""

    url: str
    api: Literal["triton", "openai"]
    plain_by: Literal["request", "baseline", "none"]
    """How the plain arm was made: by `num_draft_tokens` 0 in each request, by the server at `baseline_url`,
    or not at all.
    """
    baseline_url: str | None = None
    software: str | None = None


@dataclass(frozen=True, slots=True)
class BenchedModel:
    """The served model, as far as known; all fields except the name come from the recipe."""

    name: str
    """The name in requests."""
    recipe: str | None = None
    target: str | None = None
    draft: str | None = None
    num_draft_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class BenchMachine:
    """The machine that ran `bench`, which need not be the server's."""

    processor: str
    cores: int
    memory: int
    system: str
    python: str
    gpus: tuple[str, ...] = ()
    """The names of its GPUs."""


@dataclass(frozen=True, slots=True)
class WorkloadSummary:
    """A summary of the prompts."""

    name: str
    source: str
    prompts: int
    categories: dict[str, int]
    """The number of prompts of each category."""
    digest: str
    """Identifies the prompts."""


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """The settings of a run."""

    started: str
    """ISO 8601."""
    version: str
    pairs: int
    """Pairs of blocks for each load."""
    block_requests: int
    """The number of requests of a block (one arm at one load); the largest of all loads."""
    warm_up: int
    max_tokens: int
    temperature: float
    seed: int
    chat: bool
    confidence: float = 0.95
    targets: Targets = field(default_factory=Targets)
    load_generator: str = "trtspec"
    num_draft_tokens: int | None = None
    command: str = ""
    """The command line that repeats the run."""


@dataclass(frozen=True, slots=True)
class BenchVerdict:
    """The answer to whether drafts are worth it."""

    words: str
    """The answer in a sentence."""
    decision: Literal["on", "up_to", "off", "undecided", "unmeasured"]
    """The answer in a word.

    "on" and "off" hold for every load that has a speed-up. "up_to" means on up to the load
    `switch_off_above`. "undecided" means that the intervals do not decide, and "unmeasured" that the run has
    no speed-up.
    """
    break_even: float | None = None
    """The load at which the speed-up passes 1, between two levels."""
    switch_off_above: float | None = None
    notes: tuple[str, ...] = ()
    """Facts that a reader must know beside it."""
    invalid: tuple[str, ...] = ()
    """The options of the run that make it say nothing about users' traffic; `words` name them too."""


@dataclass(frozen=True, slots=True)
class BenchResult:
    """The result of a run."""

    server: BenchedServer
    model: BenchedModel
    machine: BenchMachine
    workload: WorkloadSummary
    settings: BenchSettings
    levels: tuple[LoadResult, ...]
    verdict: BenchVerdict
    is_partial: bool = False
    """True if the run was stopped early; the result then has the measurements so far."""
    schema_version: int = SCHEMA_VERSION

    @property
    def is_unanswered(self) -> bool:
        """Says whether requests were sent and none of them has a whole answer."""
        arms = [arm for level in self.levels for arm in (level.arms.speculative, level.arms.plain) if arm]
        sent = sum(arm.requests for arm in arms)
        return 0 < sent == sum(arm.failed for arm in arms)


def to_json(result: BenchResult) -> str:
    """Returns the result as a JSON document."""
    return _adapter().dump_json(result, indent=2).decode() + "\n"


def write(result: BenchResult, folder: Path) -> Path:
    """Writes the result atomically into a folder, which it creates if necessary; returns the file."""
    file = folder / RESULT
    write_atomically(file, to_json(result))
    return file


def read(path: Path) -> BenchResult:
    """Returns the result of a file, or of the folder of a run; raises `MeasureError`.

    Unknown keys are ignored, so that results of a later trtspec can be read.
    """
    file = path / RESULT if path.is_dir() else path
    try:
        value: Any = json.loads(file.read_text(encoding="utf-8"))
        version = value["schema_version"]
    except OSError as error:
        repair = "name the folder that trtspec bench --output wrote"
        raise MeasureError(file, f"cannot be read: {error.strerror}", repair) from error
    except (ValueError, KeyError, TypeError) as error:
        raise MeasureError(file, "is not a result of trtspec bench") from error
    if version != SCHEMA_VERSION:
        problem = f"has schema version {version}, but this trtspec reads {SCHEMA_VERSION}"
        raise MeasureError(file, problem, "read it with the trtspec that wrote it, or measure again")
    try:
        return _adapter().validate_python(value)
    except ValueError as error:
        first = str(error).splitlines()
        raise MeasureError(file, f"is an incomplete result: {' '.join(first[1:3])}") from error


def _adapter() -> TypeAdapter[BenchResult]:
    from pydantic import TypeAdapter

    return TypeAdapter(BenchResult)
