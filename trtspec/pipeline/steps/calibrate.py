"""The step that finds the FP8 scales of a model, or takes those that an earlier calibration found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from trtspec.base.errors import ModelError
from trtspec.base.progress import Advance
from trtspec.base.roles import Role
from trtspec.checkpoint.calibrate.calibrate import FORMAT, calibrate
from trtspec.checkpoint.calibration import FILE, of_layers, read_calibration, write_calibration
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.checkpoint.layers.chosen import with_layers
from trtspec.models.download import with_weights
from trtspec.models.source import Source
from trtspec.pipeline.plan.facts import (
    PlanFacts,
    is_safetensors,
    is_weight_or_tokenizer,
    made_of,
    portable_name,
)
from trtspec.pipeline.plan.obstacles import calibrate_obstacle
from trtspec.pipeline.plan.resolved import CalibrationPlan, Resolved
from trtspec.pipeline.run.step import Digested, Step, name_of
from trtspec.pipeline.steps import choose_layers

KIND = "calibrate"


def step(resolved: Resolved, facts: PlanFacts, role: Role, plan: CalibrationPlan) -> Step:
    """Returns the step, which depends neither on the ranks of a checkpoint nor on the sizes of the engine."""
    model = resolved.engines[role].model
    dataset, options, weights = plan.dataset, plan.options, Digested(made_of(is_safetensors, model))
    layers, after = choose_layers.chosen(resolved, role)
    own = choose_layers.written(resolved, role)
    action: Callable[..., None]
    told: dict[str, Any]
    if dataset.is_ready:
        summary = f"the FP8 scales of the {role}, from {dataset.file.name}"
        made = [weights, dataset.file, options.kv_cache]
        made, told = [Digested(made), own] if own else made, {"weights": weights}
        action = partial(_reuse, dataset.file, model.source, layers, kv_cache=options.kv_cache)
    else:
        summary = f"the FP8 scales of the {role}, from up to {options.samples} texts"
        values = {"format": FORMAT, "options": asdict(options), "dataset": dataset.file, **own}
        made = made_of(is_weight_or_tokenizer, model, **values)
        told = {
            "origin": {
                "model": portable_name(model.name),
                "revision": model.revision,
                "weights": weights,
                "dataset": portable_name(dataset.name),
                "dataset_revision": dataset.revision,
                "dataset_digest": dataset.file,
            }
        }

        def run(output: Path, advance: Advance, origin: Mapping[str, Any]) -> None:
            chosen = with_layers(with_weights(model.source), layers)
            write_calibration(output, calibrate(chosen, dataset.file, options, origin, advance))

        action = run
    return Step(
        kind=KIND,
        role=role,
        fetch=model.download,
        summary=summary,
        inputs=(model.name, dataset.name),
        output=f"{role}/{FILE}",
        command=(),
        made_of=made,
        action=action,
        told=told,
        after=after,
        obstacle=None if dataset.is_ready else calibrate_obstacle(facts.host),
    )


def scales(resolved: Resolved, role: Role) -> tuple[Path | None, tuple[str, ...]]:
    """Returns the file with the FP8 scales of a model and the name of the step that makes it.

    They are None and () for a model that is not calibrated.
    """
    if resolved.engines[role].calibration is None:
        return None, ()
    return resolved.output / role / FILE, (name_of(KIND, role),)


def with_scales(options: ConvertOptions, file: Path | None) -> ConvertOptions:
    """Returns the options with the scales in `file`, if there is one; raises ModelError for another file."""
    return replace(options, calibration=read_calibration(file)) if file else options


def _reuse(
    file: Path,
    source: Source,
    layers: Path | None,
    output: Path,
    advance: Advance,
    *,
    weights: str,
    kv_cache: bool,
) -> None:
    """Copies the scales that an earlier calibration of the same weights found, of some layers or of all.

    Raises ModelError for those of other weights, and for those without a KV cache that `kv_cache` asks for.
    """
    found = read_calibration(file)
    if found.provenance.get("weights") != weights:
        model = found.provenance.get("model")
        problem = f"was made from {model}, whose weights differ from this model's"
        raise ModelError(file, problem, "name texts in calibration.dataset to calibrate this model")
    if kv_cache and not found.kv:
        problem = "has no values for the KV cache"
        raise ModelError(file, problem, "calibrate with kv_cache: fp8, or write kv_cache: none")
    kept = with_layers(source, layers).layers
    write_calibration(output, found if kept is None else of_layers(found, kept))
