"""Prints the verdict on a plan: whether it fits, what to expect of it, and the next command."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from trtspec.base.units import gib
from trtspec.cli.terminal.output import out
from trtspec.pipeline.plan.speed import ACCEPTANCES

if TYPE_CHECKING:
    from trtspec.pipeline.build.plan import BuildPlan
    from trtspec.pipeline.plan.outlook import PlanOutlook
    from trtspec.pipeline.plan.speed import Speed

_USUAL = (0.6, 0.8)
"""The acceptance that most pairs have, of the forecast's own."""


def print_verdict(made: BuildPlan, outlook: PlanOutlook) -> None:
    """Prints each part of the verdict as a line."""
    name = made.resolved.loaded.recipe.name
    out.sentence(f"{name} {'; '.join(_fits(outlook))}")
    out.sentence(_expected(outlook.speed) if outlook.speed else f"no forecast: {outlook.no_speed}")
    out.sentence(outlook.advice.words)
    for names, why in _as_published(made):
        out.sentence(f"{' and '.join(names)}, computed from published sizes: {why}")
    if not any(_problems(outlook)):
        out.result(f"next: {shlex.join(_next(made))}")


def _as_published(made: BuildPlan) -> Iterator[tuple[list[str], str]]:
    """Yields each reason for which models could not be read, with the models."""
    unread = [(facts.name, facts.not_read) for facts in made.facts.models.values() if facts.not_read]
    for why, found in groupby(unread, lambda one: one[1].problem):
        yield [name for name, _ in found], why


def _problems(outlook: PlanOutlook) -> Iterator[str]:
    yield from (found.problem for found in (outlook.memory, outlook.on_cpu) if found and found.problem)


def _fits(outlook: PlanOutlook) -> Iterator[str]:
    """Yields whether the engines fit, with the memory that they take or the change that would help."""
    if problems := list(_problems(outlook)):
        yield f"does not fit: {'; '.join(problems)}"
        if outlook.alternatives:
            changes = outlook.alternatives[0].changes.items()
            yield f"it fits with {', '.join(f'{key}: {value}' for key, value in changes)}"
        return
    if memory := outlook.memory:
        yield (
            f"fits: weights and workspace take {gib(memory.weights + memory.workspace)} of the"
            f" {gib(memory.total)} of {memory.gpu}, and the rest holds {memory.requests} requests of"
            f" {memory.tokens_per_request:,} tokens"
        )
    if on_cpu := outlook.on_cpu:
        yield (
            f"fits: weights take {gib(on_cpu.weights)} of the {gib(on_cpu.free)} that are free here, and the"
            f" rest holds {on_cpu.requests} requests of {on_cpu.max_seq_len:,} tokens"
        )
    if not (memory or on_cpu):
        yield "takes what its server takes: trtspec does not know the layers"


def _expected(speed: Speed) -> str:
    """Returns the expected speed of one stream, without drafts and with them."""
    alone = speed.rows[0]
    least, most = (alone.best[ACCEPTANCES.index(share)].speedup for share in _USUAL)
    plain = alone.tokens_per_second
    return (
        f"expected of one stream: {plain:,.0f} tokens/s without drafts, {plain * least:,.0f} to"
        f" {plain * most:,.0f} with them ({least:.2f} to {most:.2f} times, where {_USUAL[0]:.0%} to"
        f" {_USUAL[1]:.0%} of the draft tokens are accepted)"
    )


def _next(made: BuildPlan) -> list[str]:
    """Returns the next command."""
    recipe, pending = str(made.resolved.loaded.path), made.pending()
    if not pending:
        return ["trtspec", "deploy", recipe]
    cannot = any(step.obstacle for step in made.steps if step.name in pending)
    in_container = cannot and made.resolved.release is not None
    return ["trtspec", "build", recipe, *(["--container"] if in_container else [])]
