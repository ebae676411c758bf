"""Computes the result of the measurements so far; pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from trtspec.client.endpoint import DraftCounts
from trtspec.measure.bench.inside import KvReuseShare
from trtspec.measure.bench.plan import BenchPlan
from trtspec.measure.bench.result import (
    ArmFigures,
    Arms,
    BenchResult,
    DraftAcceptance,
    DraftFigures,
    Goodput,
    Inside,
    Interval,
    LoadResult,
    Targets,
)
from trtspec.measure.bench.sample import ArmName, Block, LoadSamples, RequestSample
from trtspec.measure.bench.statistics import mean, percentiles, ratio
from trtspec.measure.bench.verdict import fails_often, notes, notes_of_order, verdict


def summary(
    plan: BenchPlan,
    begun: BenchResult,
    measured: Sequence[LoadSamples],
    *,
    is_partial: bool,
    is_one_tenant: bool = False,
) -> BenchResult:
    """Returns the result of a run that has begun, without loads that have no complete pair of blocks.

    `is_one_tenant` says that both arms asked one server as the same tenant.
    """
    whole = [level for level in measured if level.pairs]
    levels = tuple(_level(plan, level) for level in whole)
    said = (*notes(plan, whole, is_one_tenant), *notes_of_order(levels, plan.confidence))
    return replace(begun, levels=levels, verdict=verdict(levels, said), is_partial=is_partial)


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


def figures(
    blocks: Sequence[Block],
    targets: Targets,
    confidence: float,
    inside: Inside,
    drafts: DraftFigures | None = None,
) -> ArmFigures:
    """Returns the figures from the blocks of one arm at one load; there is at least one block.

    `drafts` is used if the answers do not report their drafts.
    """
    samples = [sample for block in blocks for sample in block.samples]
    whole = [sample for sample in samples if sample.error is None]
    seconds = sum(block.seconds for block in blocks)
    rates = [block.tokens_per_second for block in blocks]
    middle = sum(rates) / len(rates)
    kept = sum(keeps(sample, targets) for sample in samples)
    goodput = Goodput(kept / seconds if seconds else 0.0, kept / len(samples) if samples else 0.0)
    gaps = [later - now for sample in whole for now, later in pairwise(sample.pieces)]
    return ArmFigures(
        requests=len(samples),
        errors=dict(Counter(sample.error for sample in samples if sample.error).most_common()),
        seconds=seconds,
        input_tokens=sum(sample.input_tokens for sample in whole),
        output_tokens=sum(sample.output_tokens for sample in whole),
        tokens_per_second=mean(rates, confidence) or Interval(middle, min(rates), max(rates)),
        requests_per_second=len(whole) / seconds if seconds else 0.0,
        time_to_first_token=percentiles(_known(sample.time_to_first_token for sample in whole)),
        inter_token=percentiles(_known(sample.inter_token for sample in whole)),
        between_pieces=percentiles(gaps),
        end_to_end=percentiles([sample.end_to_end for sample in whole]),
        goodput=None if targets == Targets() else goodput,
        drafts=_drafts(whole) or drafts,
        inside=inside,
        blocks=tuple(rates),
        block_times=tuple(block.mean_end_to_end or 0.0 for block in blocks),
    )


def acceptance(counts: Iterable[DraftCounts]) -> DraftAcceptance:
    """Returns the sum of the draft counts that answers report."""
    exactly: Counter[int] = Counter()
    verifications = drafted = accepted = longest = 0
    for each in counts:
        verifications, drafted = verifications + each.verifications, drafted + each.drafted
        accepted, longest = accepted + each.accepted, max(longest, len(each.histogram) - 1)
        exactly.update(dict(enumerate(each.histogram)))
    at_least = [sum(exactly[k] for k in range(position, longest + 1)) for position in range(1, longest + 1)]
    return DraftAcceptance(verifications, drafted, accepted, tuple(at_least))


def _drafts(samples: Iterable[RequestSample]) -> DraftFigures | None:
    told = [(sample.category, sample.counts) for sample in samples if sample.counts is not None]
    if not any(counts.drafted for _, counts in told):
        return None
    by_category: dict[str, list[DraftCounts]] = defaultdict(list)
    for category, counts in told:
        by_category[category].append(counts)
    categories = {name: acceptance(counts) for name, counts in sorted(by_category.items()) if name}
    return DraftFigures("answers", acceptance(counts for _, counts in told), categories)


def keeps(sample: RequestSample, targets: Targets) -> bool:
    """Says whether a request got its whole answer within the targets.

    An answer of one piece has no time between tokens, which meets any target. An answer without text has no
    first token, which meets none.
    """
    if sample.error is not None:
        return False
    first, between = sample.time_to_first_token, sample.inter_token
    return (
        (targets.time_to_first_token is None or (first is not None and first <= targets.time_to_first_token))
        and (targets.inter_token is None or between is None or between <= targets.inter_token)
        and (targets.end_to_end is None or sample.end_to_end <= targets.end_to_end)
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
