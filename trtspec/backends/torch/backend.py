"""The embedded default: engines in TensorRT-LLM's format that PyTorch runs, on a CPU or one GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from trtspec.backends.backend import Unsupported
from trtspec.backends.built.backend import EngineBackend
from trtspec.backends.torch.engine_step import engine_step
from trtspec.base.roles import Role
from trtspec.pipeline.plan.facts import PlanFacts
from trtspec.pipeline.plan.resolved import Resolved
from trtspec.pipeline.run.step import Step


class TorchBackend(EngineBackend):
    """Engines of the executor in `trtspec.serving.executors.torch`."""

    name = "torch"
    title = "PyTorch"
    takes_any_recipe = True
    methods: ClassVar[Mapping[str, Unsupported | None]] = {
        "draft_model": None,
        "ngram": None,
        "hybrid": None,
        "suffix": None,
        "eagle3": None,
        "eagle": None,
        "medusa": None,
        "mtp": Unsupported("no family that it runs has layers for it", "trtspec/models/families"),
        "dflash": Unsupported(
            "its heads propose a token a step, or a token each", "trtspec/serving/executors/torch/dependents"
        ),
        "dspark": Unsupported(
            "its heads propose a token a step, or a token each", "trtspec/serving/executors/torch/dependents"
        ),
        "ngram_gpu": Unsupported(
            "trtspec looks n-grams up on the CPU while the engine works: method ngram",
            "trtspec/serving/drafters/lookup.py",
        ),
        "lookahead": Unsupported(
            "the torch backend verifies a chain of tokens, and guesses none beside it",
            "trtspec/serving/executors/torch/torch_executor.py",
        ),
    }

    def engine_step(self, resolved: Resolved, facts: PlanFacts, role: Role, gpus: tuple[str, ...]) -> Step:
        return engine_step(resolved, facts, role, gpus)


BACKEND = TorchBackend()
