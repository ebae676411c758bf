"""The steps of a build with engines: checkpoints, engines, and the Triton model repository."""

from __future__ import annotations

from collections.abc import Mapping

from trtspec.base.roles import Role
from trtspec.pipeline.machine.devices import apart
from trtspec.pipeline.plan.facts import PlanFacts
from trtspec.pipeline.plan.resolved import Resolved
from trtspec.pipeline.run.step import Step
from trtspec.pipeline.steps import build, calibrate, convert, copy_tokenizer, pull, verify, write_repository
from trtspec.pipeline.steps.pull import StoredEngine
from trtspec.pipeline.steps.steps import checks, choices
from trtspec.recipe.devices import CPU


def engine_steps(
    resolved: Resolved, facts: PlanFacts, found: Mapping[Role, StoredEngine], only: Role | None
) -> list[Step]:
    """Returns the steps but the manifest's, as `make_steps` describes them."""
    engines = resolved.engines
    if only and not engines[only].is_dependent:
        engines = {only: engines[only]}
    steps = []
    if only is None:
        steps += checks(resolved, facts)
        steps.append(copy_tokenizer.step(facts.target))
        if resolved.translates:
            steps.append(copy_tokenizer.step(facts.models[Role.DRAFT], Role.DRAFT))
    steps += choices(engines, facts)
    copied = {role: engine for role, engine in engines.items() if not engine.is_dependent}
    for role, engine in copied.items():
        if engine.calibration:
            steps.append(calibrate.step(resolved, facts, role, engine.calibration))
    steps += [convert.step(resolved, role) for role in copied]
    steps += [verify.step(resolved, role) for role in copied]
    ranks = [
        0 if engine.device == CPU else engine.checkpoint.mapping.world_size for engine in engines.values()
    ]
    own = apart(facts.host.gpus, ranks)
    steps += [build.step(resolved, facts, role, gpus) for role, gpus in zip(engines, own, strict=True)]
    steps = pull.in_place(steps, found)
    if only is None:
        steps.append(write_repository.step(resolved, facts))
    return steps
