"""Describes the content of a model repository."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trtspec.base.roles import Role
from trtspec.serving.adaptive.policy import Policy
from trtspec.serving.drafters.source import Drafting


@dataclass(frozen=True, slots=True)
class Placement:
    """The GPU of each rank, by CUDA's numbers: TensorRT-LLM's `device_ids`, Triton's `gpu_device_ids`."""

    target: tuple[int, ...]
    draft: tuple[int, ...] = ()
    """Empty without a draft, and for one on the CPU."""

    def of(self, role: Role) -> tuple[int, ...]:
        return self.target if role is Role.TARGET else self.draft

    @property
    def is_shared(self) -> bool:
        """True if a GPU has ranks of both."""
        return not set(self.target).isdisjoint(self.draft)


def place(ranks: Mapping[Role, int], gpus: int, chosen: tuple[int, ...] | None = None) -> Placement:
    """Returns the GPUs of engines with so many ranks, on a server with so many GPUs.

    The draft gets GPUs of its own if the server has them, and otherwise shares the target's first ones:
    engines on one GPU take turns on it, so apart they are faster with many requests at once. `chosen` are the
    draft's GPUs where a recipe names them.
    """
    target, draft = ranks[Role.TARGET], ranks.get(Role.DRAFT, 0)
    first = target if target + draft <= gpus else 0
    planned = tuple(range(first, first + draft))
    return Placement(tuple(range(target)), planned if chosen is None else chosen)


@dataclass(frozen=True, slots=True)
class EngineModel:
    """One engine as a Triton model of its own, in the bls layout."""

    name: str
    triton_backend: str
    """Triton's backend that runs the engine: `python`, or `tensorrtllm`, NVIDIA's in C++."""
    engine_dir: str
    """The C++ backend takes it relative to the folder that the server runs in, the build directory. The
    Python backend takes it relative to the model's folder.
    """
    max_batch_size: int
    kv_tokens: int | None = None
    """The number of tokens that the KV cache may hold. Only the C++ backend reads it."""
    gpu_device_ids: tuple[int, ...] = ()
    """The GPU of each rank. Only the C++ backend reads them."""
    enable_chunked_context: bool = True
    """Lets a prompt be read in several iterations. Only the C++ backend reads it."""
    max_attention_window: int | None = None
    """The number of tokens that a token sees; None if that is the whole sequence. Only the C++ backend reads
    it.
    """
    device: str | None = None
    """The device that torch runs the engine on, `cpu` or `cuda:1`. With None that is the first GPU, if there
    is one.
    """
    tokenizer: str | None = None
    """The path that the model follows guides by, relative as `engine_dir` is: a folder for torch, the file of
    `guided_vocabulary.py` for the C++ backend. None if the model follows no guides.
    """
    inside: Mapping[str, str] = field(default_factory=dict)
    """The parameters of the draft that the engine has inside. Only the C++ backend reads them."""


@dataclass(frozen=True, slots=True)
class TensorRtLlm:
    """The settings that one process needs, beside the folders, to serve TensorRT-LLM's engines.

    A draft of the torch backend is none of these engines.
    """

    image: str
    """NVIDIA's image of the release that built the engines."""
    placement: Placement
    kv_cache_free_gpu_mem_fraction: float
    """The share that all KV caches together take of the memory that the engines leave free."""
    enable_chunked_context: Mapping[Role, bool]
    """True for an engine that may read a prompt in several iterations."""


@dataclass(frozen=True, slots=True)
class AdmissionParameters:
    """The limits on requests: the fields are parameters of `config.pbtxt` under these names."""

    max_places: int
    """The largest number of running completions."""
    max_queue_size: int
    """The largest number of waiting completions."""
    max_queue_delay_microseconds: int
    """The longest time that a completion waits."""
    default_timeout_microseconds: int
    """The time limit of a completion, from its arrival to its last token, if its request sets none.
    """
    draft_timeout_microseconds: int | None
    """A round continues without a draft that takes longer. None if no engine proposes."""
    target_timeout_microseconds: int
    """If the target makes no progress for so long, its requests fail."""
    kv_tokens: int | None = None
    """The number of tokens that each KV cache holds; None if only the loaded engines know."""
    draft_schedule: str | None = None
    """JSON of the largest K from so many running requests on; None if their number does not bound it."""


@dataclass(frozen=True, slots=True)
class RepositorySpec:
    """The facts that `config.pbtxt` is made from.

    The folders are POSIX paths relative to the model's folder (the one that holds `config.pbtxt`), so that a
    build directory can be mounted anywhere. The defaults are the layout of a build directory. The engines'
    limits are not here: each engine's own `config.json` holds them.
    """

    model_name: str = "speculative_llm"
    draft_engine_dir: str | None = "../../draft/engine"
    """None if no model proposes."""
    draft_device: str | None = None
    """The device that torch runs the draft on, beside a target of either backend. None if the draft has the
    target's backend, and runs where that runs it.
    """
    draft_tokenizer_dir: str | None = None
    """None if the draft has the target's vocabulary."""
    num_draft_tokens: int | None = None
    """The draft length K of a request that sets none. With None it is the target's `max_draft_len`, or with
    the adaptive `policy` it follows acceptance and load.
    """
    policy: Policy = "fixed"
    share: float = 1.0
    """The share of the requests that have drafts, where no roll-out says otherwise."""
    drafting: Drafting | None = None
    """None if the draft engine proposes, or nothing does."""
    tensorrt_llm: TensorRtLlm | None = None
    """None for engines of the `torch` backend."""
    admission: AdmissionParameters | None = None
    """None if the serving side's own defaults hold."""
    engines: tuple[EngineModel, ...] = ()
    """The models of the bls layout. Empty where the coordinator runs the engines in its own process."""
    inside: Mapping[str, str] = field(default_factory=dict)
    """The parameters of the draft that the target's engine has inside. With one, no request can have another
    draft, or none.
    """
