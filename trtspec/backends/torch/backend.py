"""The embedded default: engines in TensorRT-LLM's format that PyTorch runs, on a CPU or one GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from trtspec.backends.backend import Unsupported
from trtspec.backends.built.backend import EngineBackend


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
    }


BACKEND = TorchBackend()
