"""Which backend runs which method, and why another does not: one table, a row for each method.

`limits.py` refuses by it before anything is downloaded, and the README's table is tested to be this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ENGINES = ("tensorrt_llm", "torch")
"""The backends whose engines trtspec builds and coordinates itself."""

SERVERS = ("vllm", "sglang", "tensorrt_llm_pytorch")
"""The backends that are servers of others: they load the models themselves, and no engine is built."""

BACKENDS = (*ENGINES, *SERVERS)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a backend does not run a method, and where that is written down or can be seen."""

    reason: str
    source: str


Cell = Refusal | None
"""None where it runs."""

_ONE_SOURCE = "drafts come from one source for the whole server, which the configuration names"

SUPPORT: Mapping[str, Mapping[str, Cell]] = {
    "draft_model": dict.fromkeys(BACKENDS),
    "ngram": dict.fromkeys(BACKENDS),
    "hybrid": {
        "tensorrt_llm": None,
        "torch": None,
        "vllm": Refusal(_ONE_SOURCE, "vLLM 0.33.0, vllm/config/speculative.py: SpeculativeConfig.method"),
        "sglang": Refusal(_ONE_SOURCE, "SGLang 0.5.23, sglang/srt/arg_groups/fields/spec.py"),
        "tensorrt_llm_pytorch": Refusal(_ONE_SOURCE, "TensorRT-LLM 1.2, tensorrt_llm/llmapi/llm_args.py"),
    },
}
"""By the name of a method, and then by that of a backend."""


def refusal(method: str, backend: str) -> Refusal | None:
    """Returns why the backend does not run the method; None where it does."""
    return SUPPORT[method][backend]
