"""Which backend runs which method, and why another does not: one table, a row for each method.

`limits.py` refuses by it before anything is downloaded, and the README's table is tested to be this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trtspec.methods.table import METHODS

ENGINES = ("tensorrt_llm", "torch")
"""The backends whose engines trtspec builds and coordinates itself."""

SERVERS = ("vllm", "sglang", "tensorrt_llm_pytorch")
"""The backends that are servers of others: they load the models themselves, and no engine is built."""

QUANTIZING = ("vllm", "sglang")
"""The servers that make FP8 of a model's weights while they load them.

TensorRT-LLM's PyTorch backend ignores what it is told (`CachedModelLoader` in llmapi/llm_utils.py).
"""

PINNING = ("vllm", "sglang")
"""The servers that take a draft of the Hub at a commit.

TensorRT-LLM would take the latest: `speculative_model_dir` has no revision (llmapi/llm_args.py).
"""

BACKENDS = (*ENGINES, *SERVERS)


@dataclass(frozen=True, slots=True)
class Unsupported:
    """The reason why a backend does not run a method, and its source."""

    reason: str
    source: str


Cell = Unsupported | None
"""None where it runs."""

_ONE_SOURCE = "drafts come from one source for the whole server, which the configuration names"

SUPPORT: Mapping[str, Mapping[str, Cell]] = {
    "draft_model": dict.fromkeys(BACKENDS),
    "ngram": dict.fromkeys(BACKENDS),
    "hybrid": {
        "tensorrt_llm": None,
        "torch": None,
        "vllm": Unsupported(_ONE_SOURCE, "vLLM 0.33.0, vllm/config/speculative.py: SpeculativeConfig.method"),
        "sglang": Unsupported(_ONE_SOURCE, "SGLang 0.5.23, sglang/srt/arg_groups/fields/spec.py"),
        "tensorrt_llm_pytorch": Unsupported(_ONE_SOURCE, "TensorRT-LLM 1.2, tensorrt_llm/llmapi/llm_args.py"),
    },
    "suffix": {
        **dict.fromkeys((*ENGINES, "vllm")),
        "sglang": Unsupported(
            "SGLang has no suffix decoding",
            "SGLang 0.5.23, sglang/srt/speculative/spec_info.py: SpeculativeAlgorithm",
        ),
        "tensorrt_llm_pytorch": Unsupported(
            "its PyTorch backend has no suffix decoding",
            "TensorRT-LLM 1.2, tensorrt_llm/llmapi/llm_args.py: SpeculativeConfig",
        ),
    },
    "eagle3": {
        "tensorrt_llm": Unsupported(
            "TensorRT-LLM reads EAGLE-3 heads in its PyTorch backend alone, not in engines",
            "TensorRT-LLM 1.2, docs/source/features/speculative-decoding.md",
        ),
        **dict.fromkeys(("torch", *SERVERS)),
    },
    "eagle": {
        "tensorrt_llm": Unsupported(
            "an engine of TensorRT-LLM has EAGLE's head inside (mode eagle) and verifies no other drafts",
            "TensorRT-LLM 1.2, examples/eagle/README.md",
        ),
        "torch": None,
        "vllm": None,
        "sglang": None,
        "tensorrt_llm_pytorch": Unsupported(
            "of EAGLE's heads its PyTorch backend reads those of EAGLE-3 alone",
            "TensorRT-LLM 1.2, tensorrt_llm/llmapi/llm_args.py: EagleDecodingConfig.spec_dec_mode",
        ),
    },
    "medusa": {
        **dict.fromkeys(ENGINES),
        "vllm": Unsupported(
            "vLLM has Medusa up to 0.32.0, and no more in 0.33.0; trtspec starts neither with it",
            "vLLM 0.32.0 and 0.33.0, vllm/config/speculative.py: SpeculativeMethod",
        ),
        "sglang": Unsupported(
            "SGLang has no Medusa", "SGLang 0.5.23, sglang/srt/speculative/spec_info.py: SpeculativeAlgorithm"
        ),
        "tensorrt_llm_pytorch": Unsupported(
            "only engines of TensorRT-LLM have Medusa, its PyTorch backend has not",
            "TensorRT-LLM 1.2, tensorrt_llm/llmapi/llm_args.py: MedusaDecodingConfig.supports_backend",
        ),
    },
}
"""By the name of a method, and then by that of a backend."""


def refusal(method: str, backend: str) -> Unsupported | None:
    """Returns why the backend does not run the method; None where it does.

    A method that has no row is run by the engines that trtspec coordinates, whose drafters are its own.
    """
    if method in SUPPORT:
        return SUPPORT[method][backend]
    if backend in SERVERS or METHODS[method].is_head:
        return Unsupported(f"trtspec does not start {backend} with {method}", "trtspec/recipe/support.py")
    return None
