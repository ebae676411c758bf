"""The memory that the engines take of the fullest GPU; pure.

Weights and KV cache are exact: the first are the bytes of the checkpoint's largest rank, the second follows
from the layers and key-value heads of a rank. The workspace of an engine is an estimate that is rather too
large. The KV caches get `free_gpu_memory_fraction` of what is left, as in TensorRT-LLM's `KvCacheConfig`
(`executor.h`), and all engines hold the same sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trtspec.base.roles import Role
from trtspec.base.units import GIB, gib
from trtspec.checkpoint.convert import rank_sizes
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.checkpoint.tensors import DTYPES, FP8
from trtspec.models.families import FAMILIES
from trtspec.models.source import ITEM_SIZE, Source
from trtspec.pipeline.plan.resolved import EnginePlan, Resolved, placement
from trtspec.recipe import gpus
from trtspec.recipe.devices import CPU

KV_FRACTION = 0.9
# Of each engine: the CUDA context and libraries, TensorRT, NCCL. The C++ backend's buffers for KV caches that
# go to other servers are not made (`ENGINE_VARIABLES` of deployment/triton_launch.py).
_RUNTIME = 3 * GIB // 2
_LOGIT_COPIES = 3  # the engine's output, the decoder's copy of it, the probabilities of a verification
_LOGIT_SIZE = 4  # float32
_TENSOR = 1 << 31  # trtllm-build warns of tensors with so many numbers (`check_max_num_tokens`)


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """The memory of one engine on the GPU that has most of it."""

    weights: int
    """In bytes."""
    workspace: int
    """In bytes."""
    kv_per_token: int
    """The bytes of KV cache for a token."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The fullest GPU, which has the target, and the draft too if it has no GPU of its own.

    Numbers are bytes, except those of tokens and requests.
    """

    gpu: str
    total: int
    engines: Mapping[Role, EngineMemory]
    """Lacks a draft on the CPU, whose memory is the host's: see `embedded`."""
    tokens_per_request: int
    """The sum of `max_seq_len` and the longest draft."""
    max_batch_size: int

    @property
    def weights(self) -> int:
        return sum(engine.weights for engine in self.engines.values())

    @property
    def workspace(self) -> int:
        return sum(engine.workspace for engine in self.engines.values())

    @property
    def kv_per_token(self) -> int:
        """The bytes of a token in the KV caches of all engines."""
        return sum(engine.kv_per_token for engine in self.engines.values())

    @property
    def left(self) -> int:
        """The bytes that the KV caches share; below zero if not even the engines fit."""
        free = self.total - self.weights - self.workspace
        return int(KV_FRACTION * free) if free > 0 else free

    @property
    def tokens(self) -> int:
        """The number of tokens that each cache holds."""
        return max(self.left, 0) // self.kv_per_token

    @property
    def requests(self) -> int:
        """The number of requests of full length that each cache holds."""
        return self.tokens // self.tokens_per_request

    @property
    def problem(self) -> str | None:
        """The reason why the engines cannot work on this GPU; None if they can."""
        if self.left < 0:
            needed = gib(self.weights + self.workspace)
            return f"the engines need {needed} of a GPU, but {self.gpu} has {gib(self.total)}"
        if self.requests == 0:
            longest = self.tokens_per_request
            return f"the KV cache holds {self.tokens} tokens, less than one request of {longest}"
        return None


def budget(resolved: Resolved) -> Budget | None:
    """Returns the budget of a plan; None for the `torch` backend, whose numbers `embedded` returns.

    None too without a GPU, and for a server's model whose memory trtspec cannot compute.
    """
    recipe = resolved.loaded.recipe
    gpu = resolved.target.runner.gpu(recipe)
    if gpu is None or not are_reckoned(resolved.engines):
        return None
    return budget_of(gpu, resolved.engines, recipe.hardware.count)


def are_reckoned(engines: Mapping[Role, EnginePlan]) -> bool:
    """Says whether trtspec knows the layers, and the numbers, of all models."""
    sources = [engine.model.source for engine in engines.values()]
    return all(source.architecture in FAMILIES and source.foreign is None for source in sources)


def budget_of(gpu: gpus.GpuProduct, engines: Mapping[Role, EnginePlan], count: int) -> Budget:
    """Returns the budget of engines on a server with `count` such GPUs."""
    target, is_shared = engines[Role.TARGET], placement(engines, count).is_shared
    options, draft = target.options, target.engine_draft
    on_gpus = {role: engine for role, engine in engines.items() if engine.device != CPU}
    nothing = EngineMemory(0, 0, 0)
    return Budget(
        gpu=gpu.label,
        total=int(gpu.memory_gib * GIB),
        engines={
            role: engine_memory(engine) if role is Role.TARGET or is_shared else nothing
            for role, engine in on_gpus.items()
        },
        tokens_per_request=options.max_seq_len + (draft.num_reserved if draft else options.max_draft_len),
        max_batch_size=options.max_batch_size,
    )


def engine_memory(engine: EnginePlan) -> EngineMemory:
    """Returns what the largest rank of an engine takes.

    An engine that verifies drafts computes logits for each of their tokens, and for one more; each head
    inside has logits of its own.
    """
    source, options, mapping = engine.model.source, engine.options, engine.checkpoint.mapping
    draft = engine.engine_draft
    layers = len(mapping.layers(0, source.num_hidden_layers)) + (draft.kv_layers if draft else 0)
    dtype = DTYPES[engine.checkpoint.dtype]
    rows = options.num_verified_tokens
    copies = _LOGIT_COPIES + (draft.count if draft else 0)
    logits = copies * rows * source.vocab_size * _LOGIT_SIZE
    # Activations are widest in the MLP: the residual, its norm and what was added to it; gate, up and their
    # product.
    width = 3 * source.hidden_size + 3 * source.computed_width // mapping.tp_size
    return EngineMemory(
        weights=max(rank_sizes(source, engine.checkpoint, draft)),
        workspace=_RUNTIME + options.max_num_tokens * width * ITEM_SIZE[dtype] + logits,
        kv_per_token=layers * kv_of_layer(engine.model.source, engine.checkpoint),
    )


def kv_of_layer(source: Source, checkpoint: ConvertOptions) -> int:
    """Returns the bytes of KV cache that a token takes in one layer of one tensor-parallel rank."""
    heads = max(source.num_key_value_heads // checkpoint.mapping.tp_size, 1)
    item = ITEM_SIZE[FP8 if checkpoint.fp8_kv_cache else DTYPES[checkpoint.dtype]]
    return 2 * heads * source.head_size * item


def fits_a_tensor(engine: EnginePlan, tokens: int) -> bool:
    """Says whether TensorRT can count the numbers of an iteration's widest tensor, gate and up in one."""
    wide = 2 * engine.model.source.computed_width // engine.checkpoint.mapping.tp_size
    return tokens * wide < _TENSOR
