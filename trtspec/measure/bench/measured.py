"""Turns the result of a bench into the input of the rules in `trtspec.forecast.rules`."""

from __future__ import annotations

from trtspec.forecast.rules import MeasuredRun
from trtspec.measure.bench.result import BenchResult


def measured(result: BenchResult) -> MeasuredRun:
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
