"""The step that makes a model of the layers of the target that are its draft, for another engine's server."""

from __future__ import annotations

from pathlib import Path

from trtspec.base.progress import Advance
from trtspec.base.roles import Role
from trtspec.checkpoint.layers.chosen import with_layers, write_model
from trtspec.models.download import with_weights
from trtspec.pipeline.plan.facts import is_weight_or_tokenizer, made_of
from trtspec.pipeline.plan.resolved import Resolved
from trtspec.pipeline.run.step import Step
from trtspec.pipeline.steps import choose_layers

KIND = "write layers"
OUTPUT = "draft/model"
"""Where a build has a draft that it makes for a server: layers of the target, or heads as vLLM reads them."""


def step(resolved: Resolved, role: Role) -> Step:
    model = resolved.engines[role].model
    layers, before = choose_layers.chosen(resolved, role)
    count = model.source.num_hidden_layers

    def write(output: Path, _: Advance) -> None:
        write_model(with_layers(with_weights(model.source), layers), output)

    return Step(
        kind=KIND,
        role=role,
        fetch=model.download,
        summary=f"{count} layers of the target as a model that {resolved.backend} loads",
        inputs=(model.name,),
        output=OUTPUT,
        command=(),
        made_of=made_of(is_weight_or_tokenizer, model, **choose_layers.written(resolved, role)),
        action=write,
        after=before,
    )
