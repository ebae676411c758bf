"""Writes the notes that a reader needs beside the numbers of a run; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from trtspec.measure.bench.plan import BenchPlan
from trtspec.measure.bench.result import LoadResult
from trtspec.measure.bench.sample import ArmName, LoadSamples, RequestSample
from trtspec.measure.bench.statistics import gain_of_second
from trtspec.measure.workloads.synthetic import NAME as SYNTHETIC

_LATE_S, _LATE_SHARE = 0.01, 0.01
_LEAST_GAIN = 1.01


def notes(
    plan: BenchPlan, measured: Sequence[LoadSamples], *, is_one_tenant: bool = False
) -> tuple[str, ...]:
    """Returns the notes; `is_one_tenant` says that both arms asked one server as the same tenant."""
    return (*_notes(plan, measured), *(_of_tenant(measured) if is_one_tenant else ()))


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


def _notes(plan: BenchPlan, measured: Sequence[LoadSamples]) -> Iterator[str]:
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
    if plan.workload.name == SYNTHETIC:
        yield "the prompts are random words: drafts do better or worse on your users' prompts"
    if any(not sample.tokens_told for level in measured for sample in _samples(level, "speculative")):
        yield "the server does not count its tokens; pieces of text were counted instead"


def _of_tenant(measured: Sequence[LoadSamples]) -> Iterator[str]:
    looks = [level.meanwhile for level in measured]
    if not all(look and look.is_without_earlier_answers for look in looks):
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


def _samples(level: LoadSamples, arm: ArmName) -> Iterator[RequestSample]:
    return (sample for block in level.blocks(arm) for sample in block.samples)
