"""Puts together two runs that each measured one server; pure."""

from __future__ import annotations

from dataclasses import replace

from trtspec.measure.bench.result import Arms, BenchResult, LoadResult
from trtspec.measure.bench.statistics import unpaired_ratio
from trtspec.measure.bench.summary import verdict


def merged(old: BenchResult, new: BenchResult) -> BenchResult:
    """Returns one result of two runs with the same plan: the old server is the arm without drafts.

    The ratios have Welch's intervals, since nothing was measured alternately.
    """
    known = {level.load: level.arms.speculative for level in old.levels}
    confidence, found = new.settings.confidence, []
    for level in new.levels:
        if (before := known.get(level.load)) is not None:
            after = level.arms.speculative
            ratio = unpaired_ratio(after.blocks, before.blocks, confidence)
            found.append(LoadResult(level.load, Arms(after, before), ratio))
    apart = "the servers were measured one after the other, so the ratios contain what else the machine did"
    return replace(
        new,
        server=replace(new.server, plain_by="baseline", baseline_url=old.server.url),
        levels=tuple(found),
        verdict=verdict(found, (apart, *new.verdict.notes)),
        is_partial=old.is_partial or new.is_partial,
    )
