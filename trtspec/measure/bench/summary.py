"""Computes the result of the measurements so far; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtspec.measure.bench.figures import figures
from trtspec.measure.bench.inside import KvReuseShare
from trtspec.measure.bench.notes import notes, notes_of_order
from trtspec.measure.bench.plan import BenchPlan
from trtspec.measure.bench.result import (
    ArmFigures,
    Arms,
    BenchedModel,
    BenchedServer,
    BenchMachine,
    BenchResult,
    BenchSettings,
    Inside,
    LoadResult,
    WorkloadSummary,
)
from trtspec.measure.bench.sample import ArmName, Block, LoadSamples
from trtspec.measure.bench.statistics import ratio
from trtspec.measure.bench.verdict import fails_often, verdict


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The facts about a run that are known before its first request."""

    server: BenchedServer
    model: BenchedModel
    machine: BenchMachine
    started: str
    version: str
    load_generator: str = "trtspec"
    command: str = ""
    is_one_tenant: bool = False
    """True if both arms ask one server as the same tenant."""


def summary(
    plan: BenchPlan, of: Circumstances, measured: Sequence[LoadSamples], *, is_partial: bool
) -> BenchResult:
    """Returns the result, without loads that have no complete pair of blocks."""
    whole = [level for level in measured if level.pairs]
    levels = tuple(_level(plan, level) for level in whole)
    said = notes(plan, whole, is_one_tenant=of.is_one_tenant)
    return BenchResult(
        server=of.server,
        model=of.model,
        machine=of.machine,
        workload=WorkloadSummary(
            plan.workload.name,
            plan.workload.source,
            len(plan.workload.prompts),
            plan.workload.categories,
            plan.workload.digest,
        ),
        settings=BenchSettings(
            started=of.started,
            version=of.version,
            pairs=plan.pairs,
            block_requests=max(map(plan.prompts_per_block, plan.loads)),
            warm_up=max(map(plan.warm_up_of, plan.loads)),
            max_tokens=plan.max_tokens,
            temperature=plan.temperature,
            seed=plan.seed,
            chat=plan.chat,
            confidence=plan.confidence,
            targets=plan.targets,
            load_generator=of.load_generator,
            num_draft_tokens=plan.num_draft_tokens,
            command=of.command,
        ),
        levels=levels,
        verdict=verdict(levels, (*said, *notes_of_order(levels, plan.confidence))),
        is_partial=is_partial,
    )


def _level(plan: BenchPlan, level: LoadSamples) -> LoadResult:
    if not plan.paired:
        return LoadResult(level.load, Arms(_figures(plan, level, "speculative")))
    pairs = tuple((_worth(level, pair["speculative"]), _worth(level, pair["plain"])) for pair in level.pairs)
    # Fewer seconds are better.
    compared = pairs if level.load.kind == "streams" else tuple((plain, own) for own, plain in pairs)
    arms = Arms(_figures(plan, level, "speculative"), _figures(plan, level, "plain"))
    speedup = None if fails_often(level.load, arms) else ratio(compared, plan.confidence)
    return LoadResult(level.load, arms, speedup, pairs)


def _worth(level: LoadSamples, block: Block) -> float:
    """Returns the compared value of each block: tokens per second, or at a rate the mean seconds of a
    request."""
    return block.tokens_per_second if level.load.kind == "streams" else block.mean_end_to_end or 0.0


def _figures(plan: BenchPlan, level: LoadSamples, arm: ArmName) -> ArmFigures:
    drafted = level.meanwhile if arm == "speculative" else None
    reuse = level.kv_reuse.get(arm, KvReuseShare()).share
    inside = Inside(drafted.round_times if drafted else None, reuse, level.gpu_use.get(arm))
    drafts = drafted.drafts if drafted else None
    return figures(level.blocks(arm), plan.targets, plan.confidence, inside, drafts)
