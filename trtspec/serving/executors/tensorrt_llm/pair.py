"""The loading of a target and its draft into this process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executors.tensorrt_llm.bindings import free_memory
from trtspec.serving.executors.tensorrt_llm.budget import KvBudget, tokens_of_both
from trtspec.serving.executors.tensorrt_llm.engine import TrtLlmEngine, read_engine
from trtspec.serving.executors.tensorrt_llm.trtllm_executor import TrtLlmExecutor

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class EngineLocation:
    """An engine directory and the GPU that runs it, by CUDA's number of it.

    With `enable_chunked_context` a text may take several iterations.
    """

    folder: Path
    device_id: int
    enable_chunked_context: bool = True


def load_pair(
    trtllm: Any, target: EngineLocation, draft: EngineLocation, fraction: float
) -> tuple[TrtLlmExecutor, TrtLlmExecutor]:
    """Returns target and draft; their KV caches take `fraction` of the memory that the weights leave free.

    `trtllm` is `tensorrt_llm.bindings.executor`. Raises `EngineLoadError`, where possible before anything is
    loaded.
    """
    ours, theirs = (
        read_engine(location.folder, trtllm.__version__, location.enable_chunked_context)
        for location in (target, draft)
    )
    if not ours.limits.max_draft_len:
        problem = "verifies no drafts: it was built without speculative_decoding_mode draft_tokens_external"
        raise EngineLoadError(target.folder, problem)
    is_shared = target.device_id == draft.device_id
    tokens = _tokens_of_both(target.device_id, fraction, ours, theirs) if is_shared else None
    draft_executor = TrtLlmExecutor(trtllm, theirs, draft.device_id, KvBudget(fraction, tokens))
    try:
        return TrtLlmExecutor(trtllm, ours, target.device_id, KvBudget(fraction)), draft_executor
    except EngineLoadError:
        draft_executor.shutdown()
        raise


def _tokens_of_both(device_id: int, fraction: float, target: TrtLlmEngine, draft: TrtLlmEngine) -> int:
    free = free_memory(device_id)
    tokens, needed = tokens_of_both(free, fraction, target, draft), target.limits.max_seq_len
    if tokens < needed:
        weights = (target.weight_bytes + draft.weight_bytes) / _GIB
        cache = needed * (target.kv_bytes + draft.kv_bytes) / fraction / _GIB
        problem = (
            f"has {free / _GIB:.1f} GiB free, and the engines need {weights:.1f} GiB for weights and"
            f" {cache:.1f} GiB for the KV caches of one text of {needed} tokens"
        )
        raise EngineLoadError(f"GPU {device_id}", problem)
    return tokens
