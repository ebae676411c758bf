"""The steps of a build, in order."""

from __future__ import annotations

from collections.abc import Mapping

from trtspec.base.roles import Role
from trtspec.pipeline.plan.facts import PlanFacts
from trtspec.pipeline.plan.resolved import EnginePlan, Resolved
from trtspec.pipeline.run.step import Step
from trtspec.pipeline.steps import check_pair, choose_layers, write_manifest
from trtspec.pipeline.steps.pull import StoredEngine

_NOTHING: Mapping[Role, StoredEngine] = {}


def make_steps(
    resolved: Resolved,
    facts: PlanFacts,
    found: Mapping[Role, StoredEngine] = _NOTHING,
    only: Role | None = None,
) -> list[Step]:
    """Returns every step in order; engines that were `found` in a store are pulled from there. Pure.

    With `only` these are the steps of one engine, and of the one that it lives in, if any; they end with a
    manifest, and nothing is served.
    """
    steps = resolved.target.runner.steps(resolved, facts, found, only)
    return [*steps, write_manifest.step(resolved, facts, steps, found)]


def checks(resolved: Resolved, facts: PlanFacts) -> list[Step]:
    """Returns the check of a draft that is another model than the target, or a head on it."""
    if facts.head:
        return [check_pair.head_step(resolved, facts, facts.head)]
    draft = resolved.engines.get(Role.DRAFT)
    return [check_pair.step(resolved, facts)] if draft and draft.layers is None else []


def choices(engines: Mapping[Role, EnginePlan], facts: PlanFacts) -> list[Step]:
    """Returns the steps that choose layers of the target, where the recipe does not name them."""
    layers = {role: engine.layers for role, engine in engines.items() if engine.layers}
    found = (choose_layers.step(facts, role, plan) for role, plan in layers.items())
    return [step for step in found if step]
