"""The step that converts a model to a TensorRT-LLM checkpoint."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path

from trtspec.checkpoint.calibration import FILE as CALIBRATION
from trtspec.checkpoint.convert import FORMAT, checkpoint_size, convert
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.checkpoint.layers.chosen import with_layers
from trtspec.models.headers_only import check_weights
from trtspec.models.source import Source
from trtspec.plan.resolved import Resolved
from trtspec.progress import Advance
from trtspec.roles import Role
from trtspec.run.step import Step
from trtspec.steps import choose_layers
from trtspec.steps.calibrate import scales, with_scales
from trtspec.steps.reads import digest_of_files, is_weight

KIND = "convert"


def step(resolved: Resolved, role: Role) -> Step:
    recipe, output = str(resolved.loaded.path), str(resolved.output)
    model, options = resolved.engines[role].model, resolved.engines[role].checkpoint
    calibration, after = scales(resolved, role)
    layers, before = choose_layers.chosen(resolved, role)
    own = choose_layers.written(resolved, role)
    return Step(
        kind=KIND,
        role=role,
        summary=f"the {role} as a TensorRT-LLM checkpoint in {_precision(options)}",
        inputs=(model.name, *([f"{role}/{CALIBRATION}"] if calibration else [])),
        output=checkpoint(role),
        command=("trtspec", "convert", recipe, "--only", role.value, "--output", output),
        digest=digest_of_files(is_weight, model, format=FORMAT, options=asdict(options), **own),
        action=partial(run, model.source, layers, options, calibration),
        after=(*before, *after),
        size=checkpoint_size(model.source, options),
    )


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
    output: Path,
    advance: Advance,
) -> None:
    check_weights(source)
    convert(with_layers(source, layers), with_scales(options, calibration), output, advance)
