"""The step that converts a model to a TensorRT-LLM checkpoint."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from trtspec.base.progress import Advance
from trtspec.base.roles import Role
from trtspec.checkpoint.calibration import FILE as CALIBRATION
from trtspec.checkpoint.convert import FORMAT, checkpoint_size, convert
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.checkpoint.inside import DraftInside
from trtspec.checkpoint.layers.chosen import with_layers
from trtspec.models.headers_only import check_weights
from trtspec.models.source import Source
from trtspec.pipeline.plan.resolved import EnginePlan, Resolved
from trtspec.pipeline.run.step import Step
from trtspec.pipeline.steps import choose_layers
from trtspec.pipeline.steps.calibrate import scales, with_scales
from trtspec.pipeline.steps.reads import digest_of_files, is_weight

KIND = "convert"


def step(resolved: Resolved, role: Role) -> Step:
    recipe, output = str(resolved.loaded.path), str(resolved.output)
    model, options = resolved.engines[role].model, resolved.engines[role].checkpoint
    calibration, after = scales(resolved, role)
    layers, before = choose_layers.chosen(resolved, role)
    own, inside = choose_layers.written(resolved, role), resolved.engines[role].inside
    draft, heads = (inside.draft, inside.model) if inside else (None, None)
    with_heads = f" with {draft.title}" if draft and heads else ""
    return Step(
        kind=KIND,
        role=role,
        reads_weights=True,
        summary=f"the {role}{with_heads} as a TensorRT-LLM checkpoint in {_precision(options)}",
        inputs=(
            model.name,
            *([heads.name] if heads else []),
            *([f"{role}/{CALIBRATION}"] if calibration else []),
        ),
        output=checkpoint(role),
        command=("trtspec", "convert", recipe, "--only", role.value, "--output", output),
        digest=digest_of_checkpoint(resolved.engines[role], format=FORMAT, **own),
        action=partial(run, model.source, layers, options, calibration, draft),
        after=(*before, *after),
        size=checkpoint_size(model.source, options, draft),
    )


def digest_of_checkpoint(engine: EnginePlan, **values: Any) -> str | None:
    """Returns the digest of what an engine's checkpoint is made of, and of `values`.

    It is None if the digests of the files are not known.
    """
    models = [engine.model]
    if engine.inside:
        models += [engine.inside.model] if engine.inside.model else []
        values |= engine.inside.draft.digested()
    return digest_of_files(is_weight, *models, options=asdict(engine.checkpoint), **values)


def checkpoint(role: Role) -> str:
    """Returns the folder of a checkpoint, relative to the build directory."""
    return f"{role}/checkpoint"


def _precision(options: ConvertOptions) -> str:
    """Returns the precision of the weights, and how many ranks there are if several."""
    ranks = options.mapping.world_size
    precision = f"FP8 and {options.dtype}" if options.fp8 else options.dtype
    return f"{precision}, {ranks} ranks" if ranks > 1 else precision


def run(
    source: Source,
    layers: Path | None,
    options: ConvertOptions,
    calibration: Path | None,
    inside: DraftInside | None,
    output: Path,
    advance: Advance,
) -> None:
    check_weights(source)
    convert(with_layers(source, layers), with_scales(options, calibration), output, advance, inside)
