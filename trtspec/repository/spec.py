"""What a model repository is made of."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.repository.placement import Placement


@dataclass(frozen=True, slots=True)
class TensorRtLlm:
    """What serving TensorRT-LLM's engines takes beside their folders.

    `image` is the one that has the release which built them. Both KV caches together take
    `kv_cache_free_gpu_mem_fraction` of the memory that the engines leave free.
    """

    image: str
    placement: Placement
    kv_cache_free_gpu_mem_fraction: float


@dataclass(frozen=True, slots=True)
class RepositorySpec:
    """The facts that `config.pbtxt` is made from.

    The folders are POSIX paths relative to the model's folder (the one that holds `config.pbtxt`), so that a
    build directory can be mounted anywhere; the defaults are the layout of a build directory. The engines'
    limits are not here: each engine's own `config.json` holds them. `num_draft_tokens` is the K of a request
    that names none; None stands for the target's `max_draft_len`. `tensorrt_llm` is None for engines of the
    `torch` backend.
    """

    model_name: str = "speculative_llm"
    target_engine_dir: str = "../../target/engine"
    draft_engine_dir: str = "../../draft/engine"
    tokenizer_dir: str = "../../tokenizer"
    num_draft_tokens: int | None = None
    tensorrt_llm: TensorRtLlm | None = None
