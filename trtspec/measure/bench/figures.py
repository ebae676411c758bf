"""Computes the figures of an arm from its blocks; pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

from trtspec.client.endpoint import DraftCounts
from trtspec.measure.bench.result import (
    ArmFigures,
    DraftAcceptance,
    DraftFigures,
    Goodput,
    Inside,
    Interval,
    Targets,
)
from trtspec.measure.bench.sample import Block, RequestSample
from trtspec.measure.bench.statistics import mean, percentiles


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
        goodput=_goodput(samples, targets, seconds),
        drafts=_drafts(whole) or drafts,
        inside=inside,
        blocks=tuple(rates),
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
    categories = {
        category: acceptance(counts) for category, counts in sorted(by_category.items()) if category
    }
    return DraftFigures("answers", acceptance(counts for _, counts in told), categories)


def _goodput(samples: Sequence[RequestSample], targets: Targets, seconds: float) -> Goodput | None:
    if targets == Targets():
        return None
    kept = sum(keeps(sample, targets) for sample in samples)
    return Goodput(kept / seconds if seconds else 0.0, kept / len(samples) if samples else 0.0)


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
