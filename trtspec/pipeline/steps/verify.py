"""The step that proves that a checkpoint holds the weights of its model."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from trtspec.base.progress import Advance
from trtspec.base.roles import Role
from trtspec.checkpoint.convert import checkpoint_size
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.checkpoint.inside import DraftInside
from trtspec.checkpoint.layers.chosen import with_layers
from trtspec.checkpoint.verify import FORMAT, verify
from trtspec.models.headers_only import check_weights
from trtspec.models.source import Source
from trtspec.pipeline.plan.resolved import Resolved
from trtspec.pipeline.run.step import Step, name_of
from trtspec.pipeline.steps import choose_layers, convert
from trtspec.pipeline.steps.calibrate import scales, with_scales

KIND = "verify"


def step(resolved: Resolved, role: Role) -> Step:
    recipe, output, checkpoint = str(resolved.loaded.path), str(resolved.output), convert.checkpoint(role)
    model, options = resolved.engines[role].model, resolved.engines[role].checkpoint
    calibration, after = scales(resolved, role)
    layers, before = choose_layers.chosen(resolved, role)
    own, inside = choose_layers.written(resolved, role), resolved.engines[role].draft_inside
    return Step(
        kind=KIND,
        role=role,
        reads_weights=True,
        summary="all ranks together are the original weights",
        inputs=(model.name, checkpoint),
        output=None,
        command=("trtspec", "convert", recipe, "--only", role.value, "--verify", "--output", output),
        digest=convert.digest_of_checkpoint(resolved.engines[role], format=FORMAT, **own),
        action=partial(run, model.source, layers, options, calibration, inside, resolved.output / checkpoint),
        after=(*before, *after, name_of(convert.KIND, role)),
        size=checkpoint_size(model.source, options, inside),
    )


def run(
    source: Source,
    layers: Path | None,
    options: ConvertOptions,
    calibration: Path | None,
    inside: DraftInside | None,
    checkpoint: Path,
    _: Path,
    advance: Advance,
) -> None:
    check_weights(source)
    verify(with_layers(source, layers), with_scales(options, calibration), checkpoint, advance, inside)
