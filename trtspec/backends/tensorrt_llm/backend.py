"""TensorRT-LLM: engines that `trtllm-build` makes, which NVIDIA's runtime runs under Triton."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from trtspec.backends.backend import Unsupported
from trtspec.backends.built.backend import EngineBackend
from trtspec.backends.tensorrt_llm.medusa import MedusaInside
from trtspec.backends.tensorrt_llm.rules import contradictions
from trtspec.base.findings import Finding
from trtspec.checkpoint.inside import DraftInside
from trtspec.recipe.schema import Recipe


class TensorRtLlmBackend(EngineBackend):
    """TensorRT-LLM's engines."""

    name = "tensorrt_llm"
    title = "TensorRT-LLM"
    inside: ClassVar[Mapping[str, type[DraftInside]]] = {"medusa": MedusaInside}
    compiles = True
    packages = ("tensorrt_llm",)
    triton_backend = "tensorrtllm"
    needs_gpu = "TensorRT-LLM engines need a GPU"
    float32_flaw = "TensorRT-LLM has no paged context FMHA for float32, which speculation needs"
    emulates_fp8 = False
    methods: ClassVar[Mapping[str, Unsupported | None]] = {
        "draft_model": None,
        "ngram": None,
        "hybrid": None,
        "suffix": None,
        "eagle3": Unsupported(
            "TensorRT-LLM reads EAGLE-3 heads in its PyTorch backend alone, not in engines",
            "TensorRT-LLM 1.2, docs/source/features/speculative-decoding.md",
        ),
        "eagle": Unsupported(
            "an engine of TensorRT-LLM has EAGLE's head inside (mode eagle) and verifies no other drafts",
            "TensorRT-LLM 1.2, examples/eagle/README.md",
        ),
        "medusa": None,
    }

    def contradictions(self, recipe: Recipe) -> Iterator[Finding]:
        yield from super().contradictions(recipe)
        yield from contradictions(recipe)


BACKEND = TensorRtLlmBackend()
