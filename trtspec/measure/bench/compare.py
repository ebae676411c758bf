"""Compares two runs; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

from trtspec.measure.bench.result import Arms, BenchResult, Interval, LoadResult, OfferedLoad
from trtspec.measure.bench.statistics import unpaired_ratio
from trtspec.measure.bench.summary import fails_often, verdict

_COMPARED = ("pairs", "block_requests", "max_tokens", "temperature", "seed", "load_generator", "chat")


@dataclass(frozen=True, slots=True)
class ComparedLoad:
    """A load that both runs measured, with both results."""

    load: OfferedLoad
    first: LoadResult
    second: LoadResult
    ratio: Interval | None
    """The speed of the second run divided by the first run's.

    For streams the speed is tokens per second. A rate fixes the tokens per second, so there it is the mean
    time of a request, the first run's divided by the second's. None if there are too few blocks, or if too
    many requests failed.
    """


@dataclass(frozen=True, slots=True)
class BenchComparison:
    """Two results beside each other.

    The runs were made at different times. So the ratios also contain what else the machine did during each
    run.
    """

    first: BenchResult
    second: BenchResult
    rows: tuple[ComparedLoad, ...]
    """The loads that both results have."""
    differences: tuple[str, ...]
    """Each thing, in words, that should have been the same in both runs and was not."""


def compare(first: BenchResult, second: BenchResult) -> BenchComparison:
    """Returns the comparison of two results; intervals have the confidence of the first."""
    others = {level.load: level for level in second.levels}
    rows = tuple(
        ComparedLoad(level.load, level, other, _ratio(level, other, first.settings.confidence))
        for level in first.levels
        if (other := others.get(level.load))
    )
    return BenchComparison(first, second, rows, tuple(_differences(first, second)))


def merged(old: BenchResult, new: BenchResult) -> BenchResult:
    """Returns one result of two runs that measured each server alone: the old one is the arm without drafts.

    The ratios have Welch's intervals, since nothing was measured alternately.
    """
    found = tuple(
        LoadResult(row.load, Arms(row.second.arms.speculative, row.first.arms.speculative), row.ratio)
        for row in compare(old, new).rows
    )
    server = replace(new.server, plain_by="baseline", baseline_url=old.server.url)
    apart = "the servers were measured one after the other, so the ratios contain what else the machine did"
    notes = (apart, *new.verdict.notes)
    is_partial = old.is_partial or new.is_partial
    return replace(new, server=server, levels=found, verdict=verdict(found, notes), is_partial=is_partial)


def _ratio(first: LoadResult, second: LoadResult, confidence: float) -> Interval | None:
    if first.load.kind == "streams":
        return unpaired_ratio(second.arms.speculative.blocks, first.arms.speculative.blocks, confidence)
    if any(fails_often(level.load, Arms(level.arms.speculative)) for level in (first, second)):
        return None
    return unpaired_ratio(_times(first), _times(second), confidence)


def _times(level: LoadResult) -> Sequence[float]:
    """Returns each block's mean time of a request; older results have it in their pairs alone."""
    return level.arms.speculative.block_times or [seconds for seconds, _ in level.pairs]


def _differences(first: BenchResult, second: BenchResult) -> Iterator[str]:
    if first.workload.digest != second.workload.digest:
        yield f"the prompts: {first.workload.name} and {second.workload.name}"
    for name in _COMPARED:
        before, after = getattr(first.settings, name), getattr(second.settings, name)
        if before != after:
            yield f"{name}: {before} and {after}"
    for field in fields(first.machine):
        before, after = getattr(first.machine, field.name), getattr(second.machine, field.name)
        if before != after:
            yield f"the machine's {field.name}: {before} and {after}"
    for number, result in (("first", first), ("second", second)):
        if result.is_partial:
            yield f"the {number} was stopped before its end"
    loads = {str(level.load) for level in first.levels} ^ {str(level.load) for level in second.levels}
    if loads:
        yield f"only one has {', '.join(sorted(loads))}"
