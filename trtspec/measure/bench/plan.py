"""Plans a run of `bench`: its loads, its blocks and their order; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from trtspec.measure.bench.result import OfferedLoad, Targets
from trtspec.measure.bench.sample import ArmName
from trtspec.measure.bench.statistics import FEWEST_PAIRS
from trtspec.measure.workloads.workload import Workload

BOTH: tuple[ArmName, ArmName] = ("speculative", "plain")
_STREAM_PROMPTS, _FEWEST_PROMPTS, _RATE_S = 3, 4, 10


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """The plan of a run; its fields are those of the result's settings and of the command line."""

    workload: Workload
    loads: tuple[OfferedLoad, ...]
    paired: bool
    """True measures the plain arm too."""
    pairs: int = 6
    """Pairs of blocks at each load: an even number, so that each arm comes first equally often."""
    block_prompts: int | None = None
    """The number of prompts in a block; None derives it from the load."""
    warm_up: int | None = None
    """The number of prompts of a warm-up; None derives it from the load."""
    max_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    ignore_eos: bool = False
    burstiness: float = 1.0
    num_draft_tokens: int | None = None
    chat: bool = True
    confidence: float = 0.95
    targets: Targets = field(default_factory=Targets)

    def __post_init__(self) -> None:
        if self.pairs < FEWEST_PAIRS or self.pairs % 2:
            raise ValueError(f"{self.pairs} pairs: an even number of at least {FEWEST_PAIRS} is needed")

    @property
    def arms(self) -> tuple[ArmName, ...]:
        return BOTH if self.paired else ("speculative",)

    def order(self, pair: int) -> tuple[ArmName, ...]:
        """Returns the order of the arms in a pair of blocks: A B, B A, A B, …."""
        return self.arms if pair % 2 == 0 else self.arms[::-1]

    def prompts_per_block(self, load: OfferedLoad) -> int:
        """Returns the number of prompts of a block: a few for each stream, or ten seconds of the rate."""
        if self.block_prompts is not None:
            return self.block_prompts
        wanted = load.value * (_STREAM_PROMPTS if load.kind == "streams" else _RATE_S)
        return max(_FEWEST_PROMPTS, math.ceil(wanted))

    def warm_up_of(self, load: OfferedLoad) -> int:
        """Returns the number of prompts that warm each arm up: as many as run at once."""
        if self.warm_up is not None:
            return self.warm_up
        return math.ceil(load.value) if load.kind == "streams" else _FEWEST_PROMPTS

    @property
    def prompts_needed(self) -> int:
        """Returns how many prompts the run sends, each counted once for both arms."""
        return sum(self.pairs * self.prompts_per_block(load) + self.warm_up_of(load) for load in self.loads)

    @property
    def num_blocks(self) -> int:
        return len(self.loads) * self.pairs * len(self.arms)
