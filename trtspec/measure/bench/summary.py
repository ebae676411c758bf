"""Computes the result of the measurements so far, and says whether drafts are worth it; pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from trtspec.client.endpoint import DraftCounts
from trtspec.measure.bench.plan import BenchPlan
from trtspec.measure.bench.result import (
    ArmFigures,
    Arms,
    BenchResult,
    BenchVerdict,
    DraftAcceptance,
    DraftFigures,
    Goodput,
    Inside,
    Interval,
    LoadResult,
    OfferedLoad,
    Targets,
)
from trtspec.measure.bench.sample import ArmName, Block, LoadSamples, RequestSample
from trtspec.measure.bench.server_metrics import KvReuseShare
from trtspec.measure.bench.statistics import gain_of_second, mean, percentiles, ratio
from trtspec.measure.workloads.workload import NAME as SYNTHETIC

_NO_PLAIN = (
    "no speed-up is stated, since nothing was measured without drafts: --baseline URL names the same engine "
    "without drafts"
)
_NO_PAIRS = "no speed-up is stated"
_MOST_FAILED = 0.01
"""The largest share of an arm's requests that may fail for a speed-up to be stated."""
_LATE_S, _LATE_SHARE = 0.01, 0.01
_LEAST_GAIN = 1.01
_LEAST_REUSE = 0.9
"""The least share of the reuse without drafts that is not worth a note."""


def verdict(levels: Sequence[LoadResult], notes: tuple[str, ...] = ()) -> BenchVerdict:
    """Returns the verdict on the speed-ups of the levels.

    A level gains if its whole interval is above 1, loses if it is below, and decides nothing if 1 lies
    within.
    """
    notes += tuple(_why_none(level) for level in levels if level.arms.plain and level.speedup is None)
    found = [(level, level.speedup) for level in levels if level.speedup]
    known = sorted(found, key=lambda each: each[0].load.value)
    if not known:
        if not levels:
            return BenchVerdict("nothing was measured", "unmeasured", notes=notes)
        has_plain = any(level.arms.plain for level in levels)
        return BenchVerdict(_NO_PAIRS if has_plain else _NO_PLAIN, "unmeasured", notes=notes)
    states = ["gain" if one.low > 1 else "loss" if one.high < 1 else "open" for _, one in known]
    ratios = [f"{_factor(speedup)} at {level.load}" for level, speedup in known]
    if all(state == "gain" for state in states):
        shown = ratios[0] if len(ratios) == 1 else f"{ratios[0]}, {ratios[-1]}"
        return BenchVerdict(f"{shown}: leave it on" + _at_all(known, levels), "on", notes=notes)
    if all(state == "loss" for state in states):
        return BenchVerdict(f"{ratios[0]}: switch it off" + _at_all(known, levels), "off", notes=notes)
    if all(state == "open" for state in states):
        return BenchVerdict(f"no difference was found: {', '.join(ratios)}", "undecided", notes=notes)
    gains = states.index("gain") if states[0] == "gain" else None
    end = next((place for place, state in enumerate(states) if state != "gain"), len(states))
    if gains is None or "gain" in states[end:]:
        return BenchVerdict(f"it depends: {', '.join(ratios)}", "undecided", notes=notes)
    if "loss" not in states[end:]:
        (last, _), (first, after) = known[end - 1], known[end]
        words = f"{ratios[0]}, no difference found from {first.load} on ({_factor(after)})"
        return BenchVerdict(words, "up_to", None, last.load.value, notes)
    # The speed-up crosses 1 at a load whose interval contains 1, or at the first loss.
    past = next(place for place, (_, speedup) in enumerate(known) if speedup.value <= 1)
    (last, before), (first, after) = known[past - 1], known[past]
    # It is between the two loads, by interpolating logarithms.
    share = math.log(before.value) / (math.log(before.value) - math.log(after.value))
    even = last.load.value * (first.load.value / last.load.value) ** share
    unit = "" if last.load.kind == "streams" else " requests/s"
    shown = f"{even:.0f}" if even >= 10 else f"{even:.1f}".removesuffix(".0")
    words = f"{ratios[0]}, break-even at {shown}{unit}, switch off above"
    return BenchVerdict(words, "up_to", even, even, notes)


def fails_often(arm: ArmFigures | None) -> bool:
    """Says whether too many requests of an arm failed: refused ones leave room for the others."""
    return arm is not None and arm.failed > _MOST_FAILED * arm.requests


def are_comparable(load: OfferedLoad, arms: Arms) -> bool:
    """Says whether the speeds of two arms can be compared.

    Streams are compared by tokens, which refused requests have none of. Pieces of text are no measure: each
    has any number of tokens.
    """
    both = [arm for arm in (arms.speculative, arms.plain) if arm]
    if load.kind == "rate":
        return not any(map(fails_often, both))
    return all(arm.tokens_told for arm in both)


def _why_none(level: LoadResult) -> str:
    why = "too few pairs of blocks have answers"
    if not are_comparable(level.load, level.arms):
        why = f"more than {_MOST_FAILED:.0%} of the requests of an arm failed; a lower --rate avoids that"
        if level.load.kind == "streams":
            why = "a server does not count its tokens"
    return f"{level.load}: no speed-up is stated, since {why}"


def _factor(speedup: Interval) -> str:
    half = max(speedup.high - speedup.value, speedup.value - speedup.low)
    digits = 1 if half >= 0.1 else 2
    return f"{speedup.value:.{digits}f}x ± {max(half, 0.01):.{digits}f}"


def _at_all(known: Sequence[tuple[LoadResult, Interval]], levels: Sequence[LoadResult]) -> str:
    if len(known) < len(levels):
        return f", at {len(known)} of the {len(levels)} loads that were measured"
    return f", at each of the {len(known)} loads that were measured" if len(known) > 2 else ""


def notes_of_order(levels: Sequence[LoadResult], confidence: float) -> Iterator[str]:
    """Yields the notes on loads at which the second block of a pair was faster because it came second."""
    for level in levels:
        # Fewer seconds are better.
        pairs = level.pairs if level.load.kind == "streams" else [(plain, own) for own, plain in level.pairs]
        gain = gain_of_second(pairs, confidence)
        if level.speedup and gain and gain.low > 1 and gain.value >= _LEAST_GAIN:
            better, smaller = gain.value - 1, 1 - 1 / gain.value
            yield (
                f"{level.load}: the second block of a pair was {better:.0%} faster, since it found its "
                f"prompts in a cache; the speed-up of new prompts may be up to {smaller:.0%} smaller"
            )


def notes_of_reuse(levels: Sequence[LoadResult]) -> Iterator[str]:
    """Yields the notes on loads at which the server found less of the prompts in its cache with drafts.

    An engine may keep no prefix for its drafts, or give up the end of each (sgl-project/sglang#32459).
    """
    for level in levels:
        plain = level.arms.plain.inside.kv_reuse if level.arms.plain else None
        own = level.arms.speculative.inside.kv_reuse
        if plain and own is not None and own < _LEAST_REUSE * plain:
            yield (
                f"{level.load}: the KV cache had {own:.0%} of the prompts' tokens with drafts, and "
                f"{plain:.0%} without: this engine reuses fewer prefixes with drafts"
            )


def notes(plan: BenchPlan, measured: Sequence[LoadSamples], is_one_tenant: bool = False) -> Iterator[str]:
    """Yields the notes; `is_one_tenant` says that both arms asked one server as the same tenant."""
    for level in measured:
        for arm in plan.arms:
            yield from _of_requests(level, arm)
        share = level.meanwhile.speculation_share if level.meanwhile else 1.0
        if share < 1 and plan.num_draft_tokens is None:
            yield (
                f"{level.load}: the server's roll-out gives drafts to {share:.0%} of the requests that set "
                "no K; --num-draft-tokens gives them to all"
            )
        samples = list(_samples(level, "speculative"))
        late = sum(sample.sent - sample.intended > _LATE_S for sample in samples)
        if level.load.kind == "rate" and late > _LATE_SHARE * len(samples):
            yield (
                f"{level.load}: {late} of {len(samples)} requests were sent more than 10 ms late, so this "
                "machine is too slow to send at this rate"
            )
        if level.load.kind == "streams" and plan.prompts_per_block(level.load) < 2 * level.load.value:
            yield (
                f"{level.load}: blocks have too few prompts for this number of streams; --block-prompts "
                "takes more"
            )
    if plan.prompts_needed > len(plan.workload.prompts):
        yield (
            f"{len(plan.workload.prompts)} prompts were sent repeatedly, so a cache of prompts helped more "
            "than it does with new prompts"
        )
    every = [sample for level in measured for arm in plan.arms for sample in _samples(level, arm)]
    if not _told(every):
        yield "the server does not count its tokens; pieces of text were counted instead"
    looks = [level.meanwhile for level in measured]
    if is_one_tenant and not all(look and look.is_without_earlier_answers for look in looks):
        yield (
            "all blocks had one API key, which is one tenant: a server that keeps answers (suffix, "
            "earlier_answers) may have drafted from the other arm's answers to the same prompts, and then "
            "the speed-up is too high; over Triton's HTTP each block is its own tenant"
        )


def _of_requests(level: LoadSamples, arm: ArmName) -> Iterator[str]:
    samples = list(_samples(level, arm))
    errors = Counter(sample.error for sample in samples if sample.error)
    if errors:
        kinds = ", ".join(f"{kind} {number}" for kind, number in errors.most_common())
        first = next(sample.problem for sample in samples if sample.error)
        words = {"speculative": "with drafts", "plain": "without drafts"}[arm]
        failed = f"{errors.total()} of {len(samples)} requests {words} failed"
        yield f"{level.load}: {failed}: {kinds} ({first:.100})"


def _told(samples: Iterable[RequestSample]) -> bool:
    return all(sample.tokens_told for sample in samples if sample.error is None)


def _samples(level: LoadSamples, arm: ArmName) -> Iterator[RequestSample]:
    return (sample for block in level.blocks(arm) for sample in block.samples)


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
    found = valid(verdict(levels, (*said, *notes_of_reuse(levels))), plan)
    return replace(begun, levels=levels, verdict=found, is_partial=is_partial)


def valid(found: BenchVerdict, plan: BenchPlan) -> BenchVerdict:
    """Returns a verdict that names what makes its speed-ups say nothing about users' traffic.

    Nobody can foresee random words, nor what stands behind the end of an answer, and drafts are accepted
    otherwise there (arXiv 2604.09557: random tokens overestimate throughput by 23 %).
    """
    invalid = []
    if plan.workload.name == SYNTHETIC:
        invalid.append("the prompts are random words")
    if plan.ignore_eos:
        invalid.append("ignore_eos makes answers go on behind their end")
    if not invalid or found.decision == "unmeasured":
        return found
    return replace(
        found,
        words=f"{found.words}; invalid for users' traffic: {', and '.join(invalid)}",
        invalid=tuple(invalid),
    )


def _level(plan: BenchPlan, level: LoadSamples) -> LoadResult:
    if not plan.paired:
        return LoadResult(level.load, Arms(_figures(plan, level, "speculative")))
    pairs = tuple((_worth(level, pair["speculative"]), _worth(level, pair["plain"])) for pair in level.pairs)
    # Fewer seconds are better.
    compared = pairs if level.load.kind == "streams" else tuple((plain, own) for own, plain in pairs)
    arms = Arms(_figures(plan, level, "speculative"), _figures(plan, level, "plain"))
    speedup = ratio(compared, plan.confidence) if are_comparable(level.load, arms) else None
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
        tokens_told=_told(samples),
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
    counted = [(sample.category, sample.counts) for sample in samples if sample.counts is not None]
    if not any(counts.drafted for _, counts in counted):
        return None
    by_category: dict[str, list[DraftCounts]] = defaultdict(list)
    for category, counts in counted:
        by_category[category].append(counts)
    categories = {name: acceptance(counts) for name, counts in sorted(by_category.items()) if name}
    return DraftFigures("answers", acceptance(counts for _, counts in counted), categories)


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
