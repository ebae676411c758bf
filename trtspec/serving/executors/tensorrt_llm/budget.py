"""How two engines share the memory of a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.serving.executors.tensorrt_llm.engine import TrtLlmEngine

_MOST_TOKENS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class KvBudget:
    """The KV cache of one engine: a fraction of what is free once it is loaded, and no more than
    `max_tokens`.
    """

    free_gpu_memory_fraction: float
    max_tokens: int | None = None


def tokens_of_both(free: int, fraction: float, target: TrtLlmEngine, draft: TrtLlmEngine) -> int:
    """How many tokens each KV cache holds when both hold equally many.

    `free` is in bytes, before either engine is loaded; both caches take `fraction` of what the weights
    leave. Draft and target keep the same sequences, so what one of them held beyond the other would be of no
    use.

    TensorRT-LLM takes its fraction of what is free at the time. The draft is loaded first, with this number
    as its limit: without one it would take nearly all, and the target would not fit. The target then takes
    the same fraction of what really is left, so that activations and buffers need not be guessed here.
    """
    left = free - target.weight_bytes - draft.weight_bytes
    tokens = int(max(0, left) * fraction) // (target.kv_bytes + draft.kv_bytes)
    return min(tokens, _MOST_TOKENS)
