"""Makes the step that writes the manifest: the sources of everything, and its tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from trtspec.base.digest import digest_of
from trtspec.base.progress import Advance
from trtspec.base.roles import Role
from trtspec.checkpoint.calibration import read_calibration
from trtspec.checkpoint.layers.chosen import read_layers
from trtspec.pipeline.containers.state import image_digest
from trtspec.pipeline.engine import manifest
from trtspec.pipeline.machine.installed import all_packages
from trtspec.pipeline.plan.facts import PlanFacts, portable_name
from trtspec.pipeline.plan.resolved import Resolved
from trtspec.pipeline.run.records import read_records
from trtspec.pipeline.run.step import Step
from trtspec.pipeline.steps import calibrate, choose_layers
from trtspec.pipeline.steps.pull import StoredEngine, provenance

KIND = "write manifest"
OUTPUT = "manifest.json"


def step(
    resolved: Resolved, facts: PlanFacts, steps: Sequence[Step], found: Mapping[Role, StoredEngine]
) -> Step:
    """Returns the step; `steps` are all before this one, `found` are the engines that were pulled."""
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
                "files": dict(model.digests or {}),
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
        kind=KIND,
        summary="the inputs and tools of the build",
        inputs=tuple(step.output for step in steps if step.output),
        output=OUTPUT,
        command=(),
        digest=digest_of([asdict(content), [step.digest for step in steps]]),
        action=partial(run, content, resolved.output, names, calibrations, chosen, image),
        after=names,
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


def run(
    content: manifest.Manifest,
    folder: Path,
    steps: Sequence[str],
    calibrations: Mapping[Role, Path],
    chosen: Mapping[Role, Path],
    image: Callable[[], str] | None,
    output: Path,
    advance: Advance,
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
