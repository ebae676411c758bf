"""Holds the result of a run of `bench`, and writes it as JSON.

Times are seconds, rates are a second, shares are 0 to 1. What was not measured, or is not known, is None:
zero means that it was looked at and is zero.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trtspec.base.atomic import write_atomically
from trtspec.base.errors import MeasureError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

SCHEMA_VERSION = 1
"""Grows when a reader of the version before would misread a result; new keys alone do not change it."""

RESULT = "result.json"
"""The name of the file in the folder of a run."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with the ends of its confidence interval, whose level is `Settings.confidence`."""

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """The larger distance to an end, which is what stands behind a ±."""
        return max(self.high - self.value, self.value - self.low)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """The distribution of `count` times."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Targets:
    """The latencies that a request must keep to count for goodput; None is not asked for."""

    time_to_first_token: float | None = None
    inter_token: float | None = None
    end_to_end: float | None = None


@dataclass(frozen=True, slots=True)
class Goodput:
    """The requests that met the targets. `share` is of all requests, failed ones included."""

    requests_per_second: float
    share: float


@dataclass(frozen=True, slots=True)
class DraftAcceptance:
    """Counts of draft tokens over a number of `verifications`: how many were drafted, and how many accepted.

    `accepted_per_position[i]` counts the drafts whose token i, from 0, was accepted.
    """

    verifications: int
    drafted: int
    accepted: int
    accepted_per_position: tuple[int, ...]

    @property
    def rate(self) -> float:
        """Accepted over drafted tokens; 0.0 where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_verification(self) -> float:
        """Tokens that a verification gives, the target's own one among them; 0.0 for none."""
        return 1 + self.accepted / self.verifications if self.verifications else 0.0

    @property
    def by_position(self) -> tuple[float, ...]:
        """For each position the probability that its token is accepted where all before it were.

        It counts a draft as having every position, so drafts that were cut short (at the end of an answer,
        by a policy) make it too low, by at most the share of `shortened`.
        """
        reached = (self.verifications, *self.accepted_per_position)
        return tuple(
            now / before if before else 0.0
            for before, now in zip(reached, self.accepted_per_position, strict=False)
        )

    @property
    def shortened(self) -> float:
        """The share of positions that drafts did not have, 0.0 where each had the full length."""
        full = self.verifications * len(self.accepted_per_position)
        return 1 - self.drafted / full if full else 0.0


@dataclass(frozen=True, slots=True)
class MeanRoundTimes:
    """Mean seconds of a round: its draft, its verification, and what neither of the two takes."""

    draft: float
    verify: float
    overhead: float


@dataclass(frozen=True, slots=True)
class DraftFigures:
    """The acceptance of an arm's drafts, counted from its answers or, with `source` "metrics", by the server.

    The metrics count every request that the server had meanwhile, also those of others. `by_category` is
    empty where only they tell.
    """

    source: Literal["answers", "metrics"]
    acceptance: DraftAcceptance
    by_category: dict[str, DraftAcceptance] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Inside:
    """The reports of the server's metrics and of the GPU while an arm was measured.

    `kv_reuse` is the share of prompt tokens that were found in the target's KV cache, `gpu_use` the mean
    share of time in which the GPUs were busy, by NVML.
    """

    round_times: MeanRoundTimes | None = None
    kv_reuse: float | None = None
    gpu_use: float | None = None


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """The measurements of one arm at one load, without the warm-up.

    `errors` are requests without a whole answer, by kind; they are among `requests`. `seconds` is the time
    in which the requests ran, over all blocks. Latencies are of the others: from the intended beginning to
    the first text (`time_to_first_token`) and to the end (`end_to_end`); `inter_token` is the mean time of a
    token after the first text, one value a request; `between_pieces` is the time from one piece of text to
    the next, however many tokens it has. `blocks` has the tokens a second of each block; where one has none,
    the ends of `tokens_per_second` are the least and the most of them.
    """

    requests: int
    errors: dict[str, int]
    seconds: float
    input_tokens: int
    output_tokens: int
    tokens_per_second: Interval
    requests_per_second: float
    time_to_first_token: Percentiles | None = None
    inter_token: Percentiles | None = None
    between_pieces: Percentiles | None = None
    end_to_end: Percentiles | None = None
    goodput: Goodput | None = None
    drafts: DraftFigures | None = None
    inside: Inside = field(default_factory=Inside)
    blocks: tuple[float, ...] = ()

    @property
    def failed(self) -> int:
        return sum(self.errors.values())


@dataclass(frozen=True, slots=True)
class OfferedLoad:
    """A load: either `streams` clients that each ask again when answered, or a `rate` of requests a second
    that does not wait for the server.
    """

    kind: Literal["streams", "rate"]
    value: float

    def __str__(self) -> str:
        if self.kind == "streams":
            return f"{self.value:g} stream" + ("" if self.value == 1 else "s")
        return f"{self.value:g} requests/s"


@dataclass(frozen=True, slots=True)
class Arms:
    """The server with drafts, and without; `plain` is None where nobody could be asked without."""

    speculative: ArmFigures
    plain: ArmFigures | None = None


@dataclass(frozen=True, slots=True)
class LoadResult:
    """One load, measured in both arms.

    `speedup` is tokens a second with drafts over those without, or, where the load is a rate and tokens a
    second follow from it, the mean time of a request without drafts over that with. It comes of `pairs`:
    these two values, with drafts and without, of each pair of blocks. None where there is no plain arm,
    fewer than six pairs, or a rate of which an arm did not answer more than 1 % of the requests.
    """

    load: OfferedLoad
    arms: Arms
    speedup: Interval | None = None
    pairs: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class BenchedServer:
    """The server that was measured. `plain_by` says how the plain arm was made: by `num_draft_tokens` 0 in
    each request, by another server at `baseline_url`, or not at all.
    """

    url: str
    api: Literal["triton", "openai"]
    plain_by: Literal["request", "baseline", "none"]
    baseline_url: str | None = None
    software: str | None = None


@dataclass(frozen=True, slots=True)
class BenchedModel:
    """The model that was served, as far as it is known. Requests use `name`; the other fields are the
    recipe's.
    """

    name: str
    recipe: str | None = None
    target: str | None = None
    draft: str | None = None
    num_draft_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class BenchMachine:
    """The machine that ran `bench`, which need not be the server's. `gpus` are the names of its GPUs."""

    processor: str
    cores: int
    memory: int
    system: str
    python: str
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkloadSummary:
    """A summary of the prompts: `digest` identifies them, `categories` counts the prompts of each
    category.
    """

    name: str
    source: str
    prompts: int
    categories: dict[str, int]
    digest: str


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """The settings of a run. `block_requests` and `pairs` are per arm and load; `started` is ISO 8601.

    `command` measures it again.
    """

    started: str
    version: str
    pairs: int
    block_requests: int
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


@dataclass(frozen=True, slots=True)
class BenchVerdict:
    """The answer to the question whether drafts are worth it.

    `words` says it in a sentence; `decision` in one word: "on" at every load that has a speed-up, "up_to" the
    load `switch_off_above`, "off", "undecided" where the intervals leave it open, "unmeasured" without a
    plain arm. `break_even` is the load at which the speed-up passes 1, between two levels. `notes` are what a
    reader must know beside it.
    """

    words: str
    decision: Literal["on", "up_to", "off", "undecided", "unmeasured"]
    break_even: float | None = None
    switch_off_above: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BenchResult:
    """All of it; `is_partial` where it was stopped before its end, and has what was measured until then."""

    server: BenchedServer
    model: BenchedModel
    machine: BenchMachine
    workload: WorkloadSummary
    settings: BenchSettings
    levels: tuple[LoadResult, ...]
    verdict: BenchVerdict
    is_partial: bool = False
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
    """Writes it into a folder, which is made if need be, whole or not at all; returns the file."""
    file = folder / RESULT
    write_atomically(file, to_json(result))
    return file


def read(path: Path) -> BenchResult:
    """Returns the result of a file, or of the folder of a run; raises `MeasureError`.

    Keys that are not known are passed over, so that results of a later trtspec can be read.
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
        problem = f"has schema version {version}, and this trtspec reads {SCHEMA_VERSION}"
        raise MeasureError(file, problem, "read it with the trtspec that wrote it, or measure again")
    try:
        return _adapter().validate_python(value)
    except ValueError as error:
        first = str(error).splitlines()
        raise MeasureError(file, f"is not a whole result: {' '.join(first[1:3])}") from error


def _adapter() -> TypeAdapter[BenchResult]:
    from pydantic import TypeAdapter

    return TypeAdapter(BenchResult)
