"""The step that makes an engine of trtspec's own executor: a model, or a draft that lives in its target."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from trtspec.backends.torch.dependent_builder import build_head, build_layers
from trtspec.base.digest import digest_of
from trtspec.base.progress import Advance
from trtspec.base.roles import Role
from trtspec.checkpoint.layers.chosen import with_layers
from trtspec.pipeline.engine import torch_builder
from trtspec.pipeline.plan.facts import PlanFacts
from trtspec.pipeline.plan.resolved import Resolved
from trtspec.pipeline.run.step import Step, name_of
from trtspec.pipeline.steps import build, choose_layers, convert
from trtspec.pipeline.steps.reads import digest_of_files, is_weight


def engine_step(resolved: Resolved, facts: PlanFacts, role: Role, gpus: tuple[str, ...]) -> Step:
    plan, options = resolved.engines[role], resolved.engines[role].options
    checkpoint = resolved.output / convert.checkpoint(role)
    digest = digest_of([torch_builder.FORMAT, facts.host.versions.get("trtspec"), asdict(options)])
    own = build.step(
        resolved, role, gpus, digest, lambda output, _: torch_builder.build(checkpoint, options, output)
    )
    return _dependent(own, resolved, role) if plan.is_dependent else own


def _dependent(step: Step, resolved: Resolved, role: Role) -> Step:
    """Returns the step for a draft that lives in the target's engine: a head, or layers of it."""
    plan, target = resolved.engines[role], resolved.output / build.engine(Role.TARGET)
    file, after = choose_layers.chosen(resolved, role)
    head, source = plan.head, plan.model.source

    def build_dependent(output: Path, _: Advance) -> None:
        if head:
            build_head(head, target, output)
        else:
            build_layers(with_layers(source, file).layers or (), target, output)

    return replace(
        step,
        summary="the head on the target's engine" if head else "the layers of the target's engine",
        inputs=(build.engine(Role.TARGET), *([plan.model.name] if head else [])),
        digest=digest_of_files(
            is_weight,
            plan.model,
            resolved.target.model,
            step=step.digest,
            target=asdict(resolved.target.checkpoint),
            **choose_layers.written(resolved, role),
        ),
        action=build_dependent,
        after=(*after, name_of(build.KIND, Role.TARGET)),
    )
