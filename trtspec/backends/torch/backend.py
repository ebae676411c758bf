"""The embedded default: engines in TensorRT-LLM's format that PyTorch runs, on a CPU or one GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path, PurePosixPath
from typing import ClassVar

from trtspec.backends.backend import MachineNeed, Unsupported
from trtspec.backends.shared.engines import EngineBackend
from trtspec.backends.torch import builder
from trtspec.backends.torch.builder import build_head, build_layers
from trtspec.base.digest import digest_of
from trtspec.base.progress import Advance
from trtspec.base.roles import Role
from trtspec.checkpoint.layers.chosen import with_layers
from trtspec.checkpoint.tensors import DTYPES
from trtspec.models.source import ITEM_SIZE, Source
from trtspec.pipeline.engine.engine_options import BuildOptions
from trtspec.pipeline.plan.facts import PlanFacts, is_weight, made_of
from trtspec.pipeline.plan.resolved import Resolved
from trtspec.pipeline.repository.spec import EngineModel
from trtspec.pipeline.run.step import Step, name_of
from trtspec.pipeline.steps import build, choose_layers, convert
from trtspec.recipe.schema import Recipe
from trtspec.serving.executors.torch.budget import TEXTS, KvNeed, dependent_kv_bytes

_NO_BLOCKS = Unsupported(
    "its heads propose a token a step, or a token each", "trtspec/serving/executors/torch/dependents"
)


class TorchBackend(EngineBackend):
    """Engines of the executor in `trtspec.serving.executors.torch`."""

    name = "torch"
    title = "PyTorch"
    takes_any_recipe = True
    lends_layers = True
    no_forecast = "engines of the torch backend have no data sheet: `trtspec bench` measures them"
    methods: ClassVar[Mapping[str, Unsupported | None]] = {
        "draft_model": None,
        "ngram": None,
        "hybrid": None,
        "suffix": None,
        "eagle3": None,
        "eagle": None,
        "medusa": None,
        "mtp": Unsupported("no family that it runs has layers for it", "trtspec/models/families"),
        "dflash": _NO_BLOCKS,
        "dspark": _NO_BLOCKS,
        "ngram_gpu": Unsupported(
            "trtspec looks n-grams up on the CPU while the engine works: method ngram",
            "trtspec/serving/drafters/lookup.py",
        ),
        "lookahead": Unsupported(
            "the torch backend verifies a chain of tokens, and guesses none beside it",
            "trtspec/serving/executors/torch/torch_executor.py",
        ),
    }

    def gpu(self, recipe: Recipe) -> None:
        """Returns None: its engines have the memory that the host, or its GPU, has left when they load."""

    def machine_needs(self, recipe: Recipe) -> tuple[MachineNeed, ...]:
        return ("torch", "triton_wheel")

    def host_need(self, source: Source, dtype: str, options: BuildOptions, dependent: str | None) -> KvNeed:
        """Returns the need of the whole model, since its ranks run on one device.

        A float8 cache is kept in the model's dtype.
        """
        item = ITEM_SIZE[DTYPES[dtype]]
        size = source.num_hidden_layers * 2 * source.num_key_value_heads * source.head_size * item
        if dependent:
            size = dependent_kv_bytes(dependent, source.hidden_size, size, item)
        return KvNeed(size, TEXTS * options.max_batch_size, options.max_seq_len)

    def device(self, wanted: str | None) -> str | None:
        return wanted

    def triton_model(self, model: EngineModel) -> EngineModel:
        """Returns a model of Python, whose paths begin at its own folder."""
        return EngineModel(
            model.name,
            model.triton_backend,
            str(PurePosixPath("../..", model.engine_dir)),
            model.max_batch_size,
            device=model.device,
            tokenizer="../../tokenizer" if model.tokenizer else None,
        )

    def build(self, checkpoint: Path, options: BuildOptions, output: Path) -> None:
        builder.build(checkpoint, options, output)

    def engine_step(self, resolved: Resolved, facts: PlanFacts, role: Role, gpus: tuple[str, ...]) -> Step:
        """Returns the step that makes a model's engine, or that of a draft that lives in its target."""
        plan, options = resolved.engines[role], resolved.engines[role].options
        checkpoint = resolved.output / convert.checkpoint(role)
        made = [builder.FORMAT, facts.host.versions.get("trtspec"), asdict(options)]
        own = build.step(
            resolved, role, gpus, made, lambda output, _: self.build(checkpoint, options, output)
        )
        return _dependent(own, resolved, role) if plan.is_dependent else own


def _dependent(step: Step, resolved: Resolved, role: Role) -> Step:
    """Returns the step for a draft that lives in the target's engine: a head, or layers of it."""
    plan, target = resolved.engines[role], resolved.output / build.engine(Role.TARGET)
    file, after = choose_layers.chosen(resolved, role)
    head, source = plan.head, plan.model.source

    def build_dependent(output: Path, _: Advance) -> None:
        if head:
            build_head(head, target, output)
        else:
            build_layers(with_layers(source, file).layers or (), target, output)

    return replace(
        step,
        summary="the head on the target's engine" if head else "the layers of the target's engine",
        inputs=(build.engine(Role.TARGET), *([plan.model.name] if head else [])),
        made_of=made_of(
            is_weight,
            plan.model,
            resolved.target.model,
            step=digest_of(step.made_of),
            target=asdict(resolved.target.checkpoint),
            **choose_layers.written(resolved, role),
        ),
        action=build_dependent,
        after=(*after, name_of(build.KIND, Role.TARGET)),
    )


BACKEND = TorchBackend()
