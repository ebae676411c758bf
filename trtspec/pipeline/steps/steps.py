"""The steps of a build, in order, and the stages of an engine, each of which a job of its own can do."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum

from trtspec.base.roles import Role
from trtspec.models.headers_only import is_headers_only
from trtspec.pipeline.plan.facts import PlanFacts
from trtspec.pipeline.plan.resolved import EnginePlan, Resolved
from trtspec.pipeline.run.step import Step
from trtspec.pipeline.steps import build, calibrate, choose_layers, convert, pull, write_manifest
from trtspec.pipeline.steps.pull import StoredEngine

_NOTHING: Mapping[Role, StoredEngine] = {}


def make_steps(
    resolved: Resolved,
    facts: PlanFacts,
    only: Role | None = None,
    found: Mapping[Role, StoredEngine] = _NOTHING,
) -> list[Step]:
    """Returns every step in order; engines that were `found` in a store are pulled from there. Pure.

    With `only` these are the steps of one engine, and of the one that it lives in, if any; they end with a
    manifest, and nothing is served.
    """
    steps = pull.in_place(resolved.target.runner.steps(resolved, facts, only), found)
    return [*steps, write_manifest.step(resolved, facts, steps, found)]


class Stage(str, Enum):
    """A stage of the making of one engine, in this order; its text is a value of `--until`.

    `fetch` is the download of what the others read.
    """

    FETCH = "fetch"
    CALIBRATE = "calibrate"
    CONVERT = "convert"
    BUILD = "build"

    def __str__(self) -> str:
        return self.value


_KINDS = {
    Stage.FETCH: set[str](),
    Stage.CALIBRATE: {choose_layers.KIND, calibrate.KIND},
    Stage.CONVERT: {convert.KIND, convert.VERIFY},
    Stage.BUILD: {build.KIND},
}


def up_to(steps: Iterable[Step], stage: Stage) -> list[Step]:
    """Returns those of one engine's steps that belong to a stage or to one before it; all for the last."""
    if stage is Stage.BUILD:
        return list(steps)
    order = list(Stage)
    kinds = set[str]().union(*(_KINDS[each] for each in order[: order.index(stage) + 1]))
    return [step for step in steps if step.kind in kinds]


def undone_stages(engine: EnginePlan, steps: Sequence[Step], undone: Collection[str]) -> list[Stage]:
    """Returns the stages that are left for one engine, whose steps are `steps`; the last one always is.

    `undone` names the steps that are not done.
    """
    kinds = {step.kind for step in steps if step.name in undone}
    left = [stage for stage, own in _KINDS.items() if kinds & own or stage is Stage.BUILD]
    if is_headers_only(engine.model.source) and left[0] is not Stage.BUILD:
        left.insert(0, Stage.FETCH)
    return left


def needs_gpu(stage: Stage, engine: EnginePlan) -> bool:
    """Says whether a stage is done on a GPU.

    A model is calibrated, and layers are chosen, on a CPU too, a hundred times slower.
    """
    if stage is Stage.CALIBRATE and engine.layers and engine.layers.search:
        return True
    if stage is Stage.CALIBRATE:
        return engine.calibration is not None and not engine.calibration.dataset.dataset.is_ready
    return stage is Stage.BUILD and engine.runner.compiles
