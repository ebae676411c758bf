"""Describes the content of a model repository."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trtspec.base.roles import Role
from trtspec.pipeline.repository.placement import Placement
from trtspec.serving.drafters.source import Drafting
from trtspec.serving.executors.tensorrt_llm.choices import Choices
from trtspec.serving.pace import Policy


@dataclass(frozen=True, slots=True)
class EngineModel:
    """One engine as a Triton model of its own, in the bls layout.

    `backend` runs it: torch in Triton's Python backend, tensorrt_llm in NVIDIA's C++ backend. The latter
    takes `engine_dir` relative to the folder that the server runs in, the build directory; the former
    relative to the model's. `kv_tokens` is how many tokens its KV cache may hold, `gpu_device_ids` has the
    GPU of each rank; `enable_chunked_context` lets a text be read in several iterations;
    `max_attention_window` is how many tokens a token sees, None where that is the whole text. Only the C++
    backend reads these four. `device` is where torch runs it, `cpu` or `cuda:1`; with None that is the first
    GPU, if there is one. `tokenizer` is what the model follows guides by, relative as `engine_dir` is: a
    folder for torch, the file of `guided_vocabulary.py` for the C++ backend; None where it follows none.
    `medusa_choices` are the tree of heads that the engine has inside.
    """

    name: str
    backend: str
    engine_dir: str
    max_batch_size: int
    kv_tokens: int | None = None
    gpu_device_ids: tuple[int, ...] = ()
    enable_chunked_context: bool = True
    max_attention_window: int | None = None
    device: str | None = None
    tokenizer: str | None = None
    medusa_choices: Choices = ()


@dataclass(frozen=True, slots=True)
class TensorRtLlm:
    """The settings that one process needs, beside the folders, to serve TensorRT-LLM's engines.

    `image` is NVIDIA's image of the release that built them. All KV caches together take
    `kv_cache_free_gpu_mem_fraction` of the memory that the engines leave free. An engine with chunked context
    may read a text in several iterations. A draft of the torch backend is none of these engines.
    """

    image: str
    placement: Placement
    kv_cache_free_gpu_mem_fraction: float
    enable_chunked_context: Mapping[Role, bool]


@dataclass(frozen=True, slots=True)
class AdmissionParameters:
    """The limits on requests: the fields are parameters of `config.pbtxt` under these names.

    `max_places` completions are at work at once, and `max_queue_size` more wait, each up to
    `max_queue_delay_microseconds`. A completion whose request names no time limit has
    `default_timeout_microseconds` from its arrival to its last token. A draft that takes longer than
    `draft_timeout_microseconds` is left out of its round; None where no engine proposes. A target that has
    requests and makes no progress for `target_timeout_microseconds` fails them. `kv_tokens` is how many
    tokens of text each KV cache holds, None where only the loaded engines know.
    """

    max_places: int
    max_queue_size: int
    max_queue_delay_microseconds: int
    default_timeout_microseconds: int
    draft_timeout_microseconds: int | None
    target_timeout_microseconds: int
    kv_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class RepositorySpec:
    """The facts that `config.pbtxt` is made from.

    The folders are POSIX paths relative to the model's folder (the one that holds `config.pbtxt`), so that a
    build directory can be mounted anywhere; the defaults are the layout of a build directory. The engines'
    limits are not here: each engine's own `config.json` holds them. `draft_engine_dir` is None where no model
    proposes, and `draft_tokenizer_dir` where the draft has the target's vocabulary. `draft_device` is where
    torch runs the draft, beside a target of either backend; None where the draft has the target's backend,
    and runs where that runs it. `num_draft_tokens` is the K of a request that names none; with None it is the
    target's `max_draft_len`, or with the adaptive `policy` follows acceptance and load. `share` is that of
    the requests that have drafts where no roll-out says otherwise. `drafting` is None where the draft engine
    proposes, or nothing does. `tensorrt_llm` is None for engines of the `torch` backend. `admission` is None
    where the serving side's own defaults hold. `engines` are the models of the bls layout, and empty where
    the coordinator runs the engines in its own process. `medusa_choices` are the tree of heads that the
    target's engine has inside: then no request can have another draft, or none.
    """

    model_name: str = "speculative_llm"
    target_engine_dir: str = "../../target/engine"
    draft_engine_dir: str | None = "../../draft/engine"
    draft_device: str | None = None
    tokenizer_dir: str = "../../tokenizer"
    draft_tokenizer_dir: str | None = None
    num_draft_tokens: int | None = None
    policy: Policy = "fixed"
    share: float = 1.0
    drafting: Drafting | None = None
    tensorrt_llm: TensorRtLlm | None = None
    admission: AdmissionParameters | None = None
    engines: tuple[EngineModel, ...] = ()
    medusa_choices: Choices = ()
