"""The loading of a target and its draft, if it has one, into this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executors.tensorrt_llm.bindings import free_memory
from trtspec.serving.executors.tensorrt_llm.engine import KvBudget, TrtLlmEngine, read_engine, tokens_of_each
from trtspec.serving.executors.tensorrt_llm.guided import LOGITS_DTYPES, GuidedVocabulary
from trtspec.serving.executors.tensorrt_llm.runtime_draft import RuntimeDraft
from trtspec.serving.executors.tensorrt_llm.trtllm_executor import TrtLlmExecutor

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class EngineLocation:
    """An engine directory and the GPU that runs it."""

    folder: Path
    device_id: int
    """CUDA's number of the GPU."""
    enable_chunked_context: bool = True
    """True if a prompt may take several iterations."""
    inside: RuntimeDraft | None = None
    """The engine's own draft; None if it has none."""


def load_engines(
    trtllm: Any, locations: Sequence[EngineLocation], fraction: float, guided: GuidedVocabulary | None = None
) -> list[TrtLlmExecutor]:
    """Returns the executors of a target and then of a draft, if there is one.

    With `guided` the target follows guides if the runtime can mask logits of its dtype. The KV caches take
    `fraction` of the memory that the weights leave free. `trtllm` is `tensorrt_llm.bindings.executor`. Raises
    `EngineLoadError`, if possible before it loads anything.
    """
    engines = [
        read_engine(location.folder, trtllm.__version__, location.enable_chunked_context, location.inside)
        for location in locations
    ]
    target, device_id = locations[0], locations[0].device_id
    if not engines[0].limits.max_draft_len and not engines[0].inside:
        problem = "verifies no drafts: it was built without speculative_decoding_mode draft_tokens_external"
        raise EngineLoadError(target.folder, problem)
    is_shared = [location.device_id for location in locations[1:]] == [device_id]
    tokens = _tokens_of_each(device_id, fraction, engines) if is_shared else None
    loaded: list[TrtLlmExecutor] = []
    try:
        # The target is loaded last: it takes the memory that the draft's limit leaves.
        for location, engine in reversed(list(zip(locations, engines, strict=True))):
            budget = KvBudget(fraction, None if location is target else tokens)
            follows = location is target and engine.logits_dtype in LOGITS_DTYPES
            if engine.inside:  # A step has several rows of logits, of which the runtime masks one.
                follows = False
            executor = TrtLlmExecutor(trtllm, engine, location.device_id, budget, guided if follows else None)
            loaded.insert(0, executor)
    except EngineLoadError:
        for executor in loaded:
            executor.shutdown()
        raise
    return loaded


def _tokens_of_each(device_id: int, fraction: float, engines: Sequence[TrtLlmEngine]) -> int:
    free, needed = free_memory(device_id), engines[0].limits.max_seq_len
    tokens = tokens_of_each(free, fraction, engines)
    if tokens < needed:
        weights = sum(engine.weight_bytes for engine in engines) / _GIB
        cache = needed * sum(engine.kv_bytes for engine in engines) / fraction / _GIB
        problem = (
            f"has {free / _GIB:.1f} GiB free, but the engines need {weights:.1f} GiB for weights and"
            f" {cache:.1f} GiB for the KV caches of one sequence of {needed} tokens"
        )
        raise EngineLoadError(f"GPU {device_id}", problem)
    return tokens
