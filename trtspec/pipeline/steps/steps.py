"""The steps of a build, in order, and the stages of an engine, each of which a job of its own can do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from trtspec.base.progress import Advance
from trtspec.base.roles import Role
from trtspec.checkpoint.calibration import read_calibration
from trtspec.checkpoint.layers.chosen import read_layers
from trtspec.models.download import is_headers_only
from trtspec.pipeline.containers.state import image_digest
from trtspec.pipeline.engine import manifest
from trtspec.pipeline.machine.host import all_packages
from trtspec.pipeline.plan.facts import PlanFacts, portable_name
from trtspec.pipeline.plan.resolved import EnginePlan, Resolved
from trtspec.pipeline.run.records import read_records
from trtspec.pipeline.run.step import Digested, Step
from trtspec.pipeline.steps import build, calibrate, choose_layers, convert, pull
from trtspec.pipeline.steps.pull import StoredEngine, provenance

MANIFEST = "manifest.json"


def all_steps(
    resolved: Resolved, facts: PlanFacts, own: Sequence[Step], found: Mapping[Role, StoredEngine]
) -> list[Step]:
    """Returns a backend's `own` steps and the manifest's. An engine that was `found` is pulled instead."""
    steps = pull.in_place(own, found)
    return [*steps, _manifest(resolved, facts, steps, found)]


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
    if is_headers_only(engine.model.source.folder) and left[0] is not Stage.BUILD:
        left.insert(0, Stage.FETCH)
    return left


def needs_gpu(stage: Stage, engine: EnginePlan) -> bool:
    """Says whether a stage is done on a GPU.

    A model is calibrated, and layers are chosen, on a CPU too, a hundred times slower.
    """
    if stage is Stage.CALIBRATE and engine.layers and engine.layers.search:
        return True
    if stage is Stage.CALIBRATE:
        return engine.calibration is not None and not engine.calibration.dataset.is_ready
    return stage is Stage.BUILD and engine.runner.needs_gpu is not None


def _manifest(
    resolved: Resolved, facts: PlanFacts, steps: Sequence[Step], found: Mapping[Role, StoredEngine]
) -> Step:
    """Returns the step that writes the manifest: the sources of everything, and its tools.

    `steps` are all before this one, `found` are the engines that were pulled.
    """
    calibrations = _files_of(calibrate.KIND, steps, resolved.output)
    chosen = _files_of(choose_layers.KIND, steps, resolved.output)
    host, names = facts.host, tuple(step.name for step in steps)
    content = manifest.Manifest(
        name=resolved.loaded.recipe.name,
        recipe=resolved.loaded.digest,
        backend=resolved.backend,
        values={
            choice.key: portable_name(str(choice.value)) if choice.key.endswith(".dataset") else choice.value
            for choice in resolved.choices
            if choice.key != "output"
        },
        models={
            role: {
                "model": portable_name(model.name),
                "revision": model.revision,
                "files": dict(model.files),
            }
            for role, model in facts.all_models.items()
        },
        tools=dict(host.versions),
        gpu={key: getattr(host.gpus[0], key) for key in ("name", "sm", "driver")} if host.gpus else None,
        commands=_commands(resolved, steps),
        **provenance(found),
    )
    image: Callable[[], str] | None = None
    if resolved.release and host.container_engine:
        image = partial(image_digest, host.container_engine.program, resolved.release.image)
    return Step(
        kind="write manifest",
        summary="the inputs and tools of the build",
        inputs=tuple(step.output for step in steps if step.output),
        output=MANIFEST,
        command=(),
        made_of=[asdict(content), [Digested(step.made_of) for step in steps]],
        action=partial(_write_manifest, content, resolved.output, names, calibrations, chosen, image),
        after=names,
        told={"models": content.models},
    )


def _files_of(kind: str, steps: Sequence[Step], build: Path) -> dict[Role, Path]:
    """Returns the files that steps of a kind make, by role."""
    return {
        step.role: build / step.output for step in steps if step.kind == kind and step.role and step.output
    }


def _commands(resolved: Resolved, steps: Sequence[Step]) -> dict[str, list[str]]:
    """Returns the command lines by step, as if run in the build directory: the same on every machine."""
    recipe, build = resolved.loaded.path, resolved.output
    places = {str(recipe): recipe.name, str(build): "."}
    return {
        step.name: list(step.portable)
        or [places.get(word, word.removeprefix(f"{build}/")) for word in step.command]
        for step in steps
        if step.command
    }


def _write_manifest(
    content: manifest.Manifest,
    folder: Path,
    steps: Sequence[str],
    calibrations: Mapping[Role, Path],
    chosen: Mapping[Role, Path],
    image: Callable[[], str] | None,
    output: Path,
    advance: Advance,
    models: Mapping[str, Mapping[str, Any]],
) -> None:
    """Completes the manifest, which is known only after the other steps, and writes it.

    It adds what the records say of these steps, how FP8 scales and layers were found and what they cost, what
    is installed, and the name of the image that built the engines, which `image` returns.
    """
    found = read_records(folder)
    records = {name: found[name] for name in steps if name in found}
    outputs = {path: digest for record in records.values() for path, digest in record.files.items()}
    times = {name: record.seconds for name, record in records.items()}
    read = {role: read_calibration(file) for role, file in calibrations.items()}
    complete = replace(
        content,
        models=models,
        calibration={**content.calibration, **{role: scale.provenance for role, scale in read.items()}},
        quality={
            **content.quality,
            **{role: scale.quality and asdict(scale.quality) for role, scale in read.items()},
        },
        layers={**content.layers, **{role: asdict(read_layers(file)) for role, file in chosen.items()}},
        packages=all_packages(),
        image=image() if image else None,
        outputs=dict(sorted(outputs.items())),
        times=times,
    )
    output.write_text(complete.to_json(), encoding="utf-8")
