"""The steps that convert a model to a TensorRT-LLM checkpoint, and prove that it holds the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from trtspec.base.progress import Advance
from trtspec.base.roles import Role
from trtspec.checkpoint.calibration import FILE as CALIBRATION
from trtspec.checkpoint.convert import FORMAT, checkpoint_size, convert
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.checkpoint.engine_draft import EngineDraft
from trtspec.checkpoint.layers.chosen import with_layers
from trtspec.checkpoint.verify import FORMAT as VERIFY_FORMAT
from trtspec.checkpoint.verify import verify
from trtspec.models.download import with_weights
from trtspec.models.source import Source
from trtspec.pipeline.plan.facts import is_weight, made_of
from trtspec.pipeline.plan.resolved import EnginePlan, Resolved
from trtspec.pipeline.run.step import Step, name_of
from trtspec.pipeline.steps import choose_layers
from trtspec.pipeline.steps.calibrate import scales, with_scales

KIND, VERIFY = "convert", "verify"
_Work = Callable[[Source, ConvertOptions, Path, Advance, EngineDraft | None], None]


def step(resolved: Resolved, role: Role) -> Step:
    recipe, output = str(resolved.loaded.path), str(resolved.output)
    engine, own = resolved.engines[role], choose_layers.written(resolved, role)
    layers, before = choose_layers.chosen(resolved, role)
    model, options = engine.model, engine.checkpoint
    calibration, after = scales(resolved, role)
    draft, heads = engine.engine_draft, engine.engine_heads
    with_heads = f" with {draft.title}" if draft and heads else ""
    return Step(
        kind=KIND,
        role=role,
        fetch=model.download,
        summary=f"the {role}{with_heads} as a TensorRT-LLM checkpoint in {_precision(options)}",
        inputs=(
            model.name,
            *([heads.name] if heads else []),
            *([f"{role}/{CALIBRATION}"] if calibration else []),
        ),
        output=checkpoint(role),
        command=("trtspec", "convert", recipe, "--only", role.value, "--output", output),
        made_of=made_of_checkpoint(engine, format=FORMAT, **own),
        action=partial(run, convert, model.source, layers, options, calibration, draft),
        after=(*before, *after),
        size=checkpoint_size(model.source, options, draft),
    )


def proof(resolved: Resolved, role: Role) -> Step:
    """Returns the step that proves that the checkpoint holds the weights of its model."""
    recipe, output, made = str(resolved.loaded.path), str(resolved.output), checkpoint(role)
    engine, own = resolved.engines[role], choose_layers.written(resolved, role)
    layers, before = choose_layers.chosen(resolved, role)
    model, options, draft = engine.model, engine.checkpoint, engine.engine_draft
    calibration, after = scales(resolved, role)
    prove = partial(run, verify, model.source, layers, options, calibration, draft)
    return Step(
        kind=VERIFY,
        role=role,
        fetch=model.download,
        summary="all ranks together are the original weights",
        inputs=(model.name, made),
        output=None,
        command=("trtspec", "convert", recipe, "--only", role.value, "--verify", "--output", output),
        made_of=made_of_checkpoint(engine, format=VERIFY_FORMAT, **own),
        action=lambda _, advance: prove(resolved.output / made, advance),
        after=(*before, *after, name_of(KIND, role)),
        size=checkpoint_size(model.source, options, draft),
    )


def made_of_checkpoint(engine: EnginePlan, **values: Any) -> list[Any]:
    """Returns all that an engine's checkpoint is made of, and `values`."""
    models = [engine.model, *([engine.engine_heads] if engine.engine_heads else [])]
    values |= engine.engine_draft.digested() if engine.engine_draft else {}
    return made_of(is_weight, *models, options=asdict(engine.checkpoint), **values)


def checkpoint(role: Role) -> str:
    """Returns the folder of a checkpoint, relative to the build directory."""
    return f"{role}/checkpoint"


def _precision(options: ConvertOptions) -> str:
    """Returns the precision of the weights, and how many ranks there are if several."""
    ranks = options.mapping.world_size
    precision = f"FP8 and {options.dtype}" if options.fp8 else options.dtype
    return f"{precision}, {ranks} ranks" if ranks > 1 else precision


def run(
    work: _Work,
    source: Source,
    layers: Path | None,
    options: ConvertOptions,
    calibration: Path | None,
    draft: EngineDraft | None,
    folder: Path,
    advance: Advance,
) -> None:
    work(with_layers(with_weights(source), layers), with_scales(options, calibration), folder, advance, draft)
