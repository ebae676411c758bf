"""The step that chooses the layers of the target that are its draft."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trtspec.base.progress import Advance
from trtspec.base.roles import Role
from trtspec.checkpoint.layers.choose import FORMAT, SearchOptions, choose_layers
from trtspec.checkpoint.layers.chosen import FILE, write_layers
from trtspec.models.download import with_weights
from trtspec.models.source import read_source
from trtspec.pipeline.plan.facts import PlanFacts, is_weight_or_tokenizer, made_of, portable_name
from trtspec.pipeline.plan.obstacles import search_obstacle
from trtspec.pipeline.plan.resolved import EnginePlan, LayersPlan, Resolved
from trtspec.pipeline.run.step import Step, name_of

KIND = "choose layers"


def searches(engines: Mapping[Role, EnginePlan], facts: PlanFacts) -> list[Step]:
    """Returns the steps that choose layers of the target, where the recipe does not name them."""
    plans = {role: engine.layers for role, engine in engines.items() if engine.layers}
    return [_step(facts, role, plan, plan.search) for role, plan in plans.items() if plan.search]


def _step(facts: PlanFacts, role: Role, layers: LayersPlan, options: SearchOptions) -> Step:
    """Returns the step, which depends on no size of an engine."""
    model, texts = facts.models[role], layers.dataset
    name = texts.name if texts else "trtspec's own texts"
    origin = {
        "model": portable_name(model.name),
        "revision": model.revision,
        "dataset": portable_name(name),
        "dataset_revision": texts.revision if texts else None,
        "dataset_digest": texts.file if texts else None,
    }
    values = {"format": FORMAT, "options": asdict(options), "dataset": texts and texts.file}

    def choose(output: Path, advance: Advance, origin: Mapping[str, Any]) -> None:
        source = read_source(with_weights(model.source).folder)
        dataset = texts.file if texts else None
        write_layers(output, choose_layers(source, dataset, options, origin, advance))

    return Step(
        kind=KIND,
        role=role,
        fetch=model.download,
        summary=f"the {options.count} layers of the target that foresee most of its answers to {name}",
        inputs=(model.name, name),
        output=f"{role}/{FILE}",
        command=(),
        made_of=made_of(is_weight_or_tokenizer, model, **values),
        action=choose,
        told={"origin": origin},
        obstacle=search_obstacle(facts.host),
    )


def chosen(resolved: Resolved, role: Role) -> tuple[Path | None, tuple[str, ...]]:
    """Returns the file with the layers of a model and the name of the step that chooses them.

    They are None and () where nothing is left to choose.
    """
    layers = resolved.engines[role].layers
    if layers is None or layers.search is None:
        return None, ()
    return resolved.output / role / FILE, (name_of(KIND, role),)


def written(resolved: Resolved, role: Role) -> dict[str, Any]:
    """Returns what is to be in the digest of a step for layers that the recipe names; nothing for others."""
    layers = resolved.engines[role].layers
    return {"layers": layers.chosen} if layers and layers.chosen else {}
