"""The steps of a build, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trtspec.backends.servers.launch import ServerLaunch
from trtspec.base.roles import Role
from trtspec.pipeline.machine.devices import apart
from trtspec.pipeline.plan.facts import PlanFacts
from trtspec.pipeline.plan.resolved import EnginePlan, Resolved
from trtspec.pipeline.run.step import Step
from trtspec.pipeline.steps import (
    build,
    calibrate,
    check_head,
    check_pair,
    choose_layers,
    convert,
    copy_tokenizer,
    pull,
    verify,
    write_launch,
    write_layers,
    write_manifest,
    write_repository,
    write_vllm_repository,
)
from trtspec.pipeline.steps.pull import StoredEngine
from trtspec.recipe.devices import CPU

_NOTHING: Mapping[Role, StoredEngine] = {}
_READERS = (choose_layers.KIND, calibrate.KIND, convert.KIND, verify.KIND, write_layers.KIND)


def make_steps(
    resolved: Resolved,
    facts: PlanFacts,
    found: Mapping[Role, StoredEngine] = _NOTHING,
    only: Role | None = None,
) -> list[Step]:
    """Returns every step in order; engines that were `found` in a store are pulled from there. Pure.

    With `only` these are the steps of one engine, and of the one that it lives in, if any; they end with a
    manifest, and nothing is served. A server of others needs no engine.
    """
    if resolved.launch:
        return _server_steps(resolved, resolved.launch, facts)
    engines = resolved.engines
    if only and not engines[only].is_dependent:
        engines = {only: engines[only]}
    steps = []
    if only is None:
        steps += _checks(resolved, facts)
        steps.append(copy_tokenizer.step(facts.target))
        if resolved.translates:
            steps.append(copy_tokenizer.step(facts.models[Role.DRAFT], Role.DRAFT))
    steps += _choices(engines, facts)
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
    steps.append(write_manifest.step(resolved, facts, steps, found))
    return steps


def _server_steps(resolved: Resolved, launch: ServerLaunch, facts: PlanFacts) -> list[Step]:
    steps = _checks(resolved, facts)
    steps.append(copy_tokenizer.step(facts.target))
    steps += _choices(resolved.engines, facts)
    steps += [write_layers.step(resolved, role) for role, engine in resolved.engines.items() if engine.layers]
    steps += write_launch.steps(launch)
    if resolved.loaded.recipe.serving.layout == "triton":
        steps.append(write_vllm_repository.step(launch))
    steps.append(write_manifest.step(resolved, facts, steps, _NOTHING))
    return steps


def _checks(resolved: Resolved, facts: PlanFacts) -> list[Step]:
    """Returns the check of a draft that is another model than the target, or a head on it."""
    if facts.head:
        return [check_head.step(resolved, facts, facts.head)]
    draft = resolved.engines.get(Role.DRAFT)
    return [check_pair.step(resolved, facts)] if draft and draft.layers is None else []


def _choices(engines: Mapping[Role, EnginePlan], facts: PlanFacts) -> list[Step]:
    """Returns the steps that choose layers of the target, where the recipe does not name them."""
    layers = {role: engine.layers for role, engine in engines.items() if engine.layers}
    found = (choose_layers.step(facts, role, plan) for role, plan in layers.items())
    return [step for step in found if step]


def weights_read(steps: Sequence[Step]) -> set[Role]:
    """Returns the roles of the models whose weights these steps read."""
    return {step.role for step in steps if step.role and step.kind in _READERS}
