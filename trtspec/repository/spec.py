"""What a model repository is made of."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.repository.placement import Placement

TARGET, DRAFT = "tensorrt_llm", "tensorrt_llm_draft"


@dataclass(frozen=True, slots=True)
class EngineModel:
    """One engine as a Triton model of its own, in the bls layout.

    `backend` runs it: torch in Triton's Python backend, tensorrt_llm in NVIDIA's C++ backend. The latter
    takes `engine_dir` relative to the folder that the server runs in, the build directory; the former
    relative to the model's. `kv_tokens` is how many tokens its KV cache may hold, `gpu_device_ids` has the
    GPU of each rank; both are the C++ backend's alone.
    """

    name: str
    backend: str
    engine_dir: str
    max_batch_size: int
    kv_tokens: int | None = None
    gpu_device_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorRtLlm:
    """What serving TensorRT-LLM's engines in one process takes beside their folders.

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
    `torch` backend. `engines` are the models `TARGET` and `DRAFT` of the bls layout, and empty where the
    coordinator runs both engines in its own process.
    """

    model_name: str = "speculative_llm"
    target_engine_dir: str = "../../target/engine"
    draft_engine_dir: str = "../../draft/engine"
    tokenizer_dir: str = "../../tokenizer"
    num_draft_tokens: int | None = None
    tensorrt_llm: TensorRtLlm | None = None
    engines: tuple[EngineModel, ...] = ()
