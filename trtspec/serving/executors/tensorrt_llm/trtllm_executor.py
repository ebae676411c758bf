"""The executor for TensorRT-LLM's engines, with the C++ runtime in this process by NVIDIA's bindings."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executor import FinishReason, KvReuse, Listener, Request, Response
from trtspec.serving.executors.draft_logits import DraftLogits, Rows, needs_logits
from trtspec.serving.executors.tensorrt_llm.bindings import (
    ResponseThread,
    free_memory,
    from_bindings,
    one_line,
    to_bindings,
)
from trtspec.serving.executors.tensorrt_llm.engine import KvBudget, TrtLlmEngine, read_engine, tokens_of_each
from trtspec.serving.executors.tensorrt_llm.guided import (
    GUIDE_TYPES,
    LOGITS_DTYPES,
    GuidedVocabulary,
    check_guided,
    to_config,
)
from trtspec.serving.executors.tensorrt_llm.runtime_draft import RuntimeDraft
from trtspec.serving.executors.validation import Refused, validate

log = logging.getLogger(__name__)

_ITERATIONS = 64


class TrtLlmExecutor:
    """Implements `trtspec.serving.executor.Executor` with `tensorrt_llm.bindings.executor.Executor`.

    `trtllm` is that module. It runs one engine of one rank on the GPU with CUDA's number `device_id`. With
    `guided` it follows guides, which must have been compiled before (see `guided.py`). Raises
    `EngineLoadError`.

    Requests are validated here: the runtime checks neither token ids nor whether numbers are finite, and
    accepts a prompt that leaves no room for output. Seeds go to the engine unchanged. Its random numbers
    depend on the division of a completion into requests, so a seed gives the same output only with the same
    drafts.
    """

    def __init__(
        self,
        trtllm: Any,
        engine: TrtLlmEngine,
        device_id: int,
        kv_budget: KvBudget,
        guided: GuidedVocabulary | None = None,
    ) -> None:
        self._trtllm, self._guided = trtllm, guided
        self.limits = replace(engine.limits, guide_types=GUIDE_TYPES) if guided else engine.limits
        try:
            config = _config(trtllm, engine, device_id, kv_budget)
            if guided is not None:
                config.guided_decoding_config = to_config(trtllm, guided)
            runtime = trtllm.Executor(engine.folder, trtllm.ModelType.DECODER_ONLY, config)
        except Exception as error:
            raise EngineLoadError(engine.folder, one_line(error)) from error
        self._runtime: Any = runtime
        self._listeners: dict[int, tuple[Listener, bool]] = {}
        """The listener of each running request, and whether the request has a draft."""
        form = engine.limits.draft_logits
        self._logits = None if form is None else DraftLogits(engine.limits.max_draft_len, form)
        self._lent: dict[int, tuple[Rows, list[int]]] = {}
        """The draft logits and the draft of each running request that has draft logits."""
        self._refused_ids = itertools.count(-1, -1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.failure: str | None = None
        self.kv_tokens, self.progress, self._kv_use = kv_budget.max_tokens, 0, 0.0
        self.kv_reuse: KvReuse | None = None
        """The reuse as of the last `take_kv_use`, in blocks: one that is reused in part counts whole."""
        self._responses = ResponseThread(runtime, self._receive, self._fail)

    def take_kv_use(self) -> float | None:
        """Returns the largest share of the blocks in use in any iteration since the last call.

        If there was no iteration since then, it is the last value.
        """
        if self.failure is not None:
            return None
        try:
            iterations = self._runtime.get_latest_iteration_stats()
        except Exception as error:  # The engine has ended, which the thread of the responses reports.
            log.warning("the engine has no statistics: %s", one_line(error))
            return None
        found = [each.kv_cache_stats for each in iterations if each.kv_cache_stats is not None]
        if found:
            last = found[-1]
            asked = last.reused_blocks + last.missed_blocks
            size = last.tokens_per_block
            self.kv_reuse = KvReuse(asked * size, last.reused_blocks * size)
            self._kv_use = max(each.used_num_blocks / each.max_num_blocks for each in found)
        elif not self._listeners:
            self._kv_use = 0.0
        return self._kv_use

    def enqueue_request(self, request: Request, listener: Listener) -> int:
        self._loop = asyncio.get_running_loop()
        try:
            if self.failure is not None:
                raise Refused(self.failure)
            valid = validate(request, self.limits)
            check_guided(request, None if self._guided is None else self._guided.stop_token_id)
            rows = (
                self._logits.lend(valid.draft_token_ids)
                if self._logits and needs_logits(request, valid)
                else None
            )
            translated = to_bindings(self._trtllm, request, valid, self.limits.vocab_size, rows)
            request_id: int = self._runtime.enqueue_request(translated)
        except Exception as error:  # `Refused`, or any exception of the bindings.
            request_id = next(self._refused_ids)
            refusal = Response(request_id, [], is_final=True, error=one_line(error))
            self._loop.call_soon(listener, refusal)
            return request_id
        self._listeners[request_id] = listener, bool(valid.draft_token_ids)
        if rows is not None:
            self._lent[request_id] = rows, valid.draft_token_ids
        return request_id

    def cancel_request(self, request_id: int) -> None:
        """Cancels a request, which the engine ends before its next iteration; later responses are dropped.

        The engine must never get the id of a finished request: it would keep the id, and cancel a later
        request with the same one.
        """
        running = self._listeners.pop(request_id, None)
        if running is None:
            return
        self._lent.pop(request_id, None)  # They are not reused: the engine may still read them.
        if self.failure is None:
            self._runtime.cancel_request(request_id)
        cancelled = Response(request_id, [], is_final=True, finish_reason=FinishReason.CANCELLED)
        asyncio.get_running_loop().call_soon(running[0], cancelled)

    def shutdown(self) -> None:
        """Cancels all requests, which the engine's own shutdown would complete first, and ends the engine."""
        if self._runtime is None:
            return
        for request_id in list(self._listeners):
            self.cancel_request(request_id)
        self.failure = "The engine is shut down"
        self._responses.shutdown()
        self._runtime = None

    def _receive(self, responses: list[Any]) -> None:
        self.progress += 1
        self._post(self._deliver, responses)

    def _fail(self, error: str) -> None:
        log.error("the engine failed: %s", error)
        self.failure = f"The engine failed: {error}"
        self._post(self._fail_all)

    def _post(self, work: Callable[..., None], *arguments: Any) -> None:
        """Schedules a call of `work` on the loop, from the thread of the responses."""
        if self._loop is not None:
            with suppress(RuntimeError):  # The loop is closed, and nothing waits for a response.
                self._loop.call_soon_threadsafe(work, *arguments)

    def _deliver(self, responses: Iterable[Any]) -> None:
        left = deque(responses)
        try:
            while left:
                self._pass_on(left.popleft())
        finally:  # An error of one listener must not stop the others.
            if left and self._loop is not None:
                self._loop.call_soon(self._deliver, left)

    def _pass_on(self, response: Any) -> None:
        running = self._listeners.get(response.request_id)
        if running is None:
            return
        listener, has_draft = running
        translated = from_bindings(response, self.limits, has_draft)
        if translated.is_final:
            del self._listeners[translated.request_id]
            if self._logits and (lent := self._lent.pop(translated.request_id, None)):
                self._logits.take_back(*lent)
        listener(translated)

    def _fail_all(self) -> None:
        assert self._loop is not None
        for request_id, (listener, _) in self._listeners.items():
            failure = Response(request_id, [], is_final=True, error=self.failure)
            self._loop.call_soon(listener, failure)
        self._listeners.clear()


def _config(trtllm: Any, engine: TrtLlmEngine, device_id: int, kv_budget: KvBudget) -> Any:
    """Returns an `ExecutorConfig` with arguments of every release from 1.0 to 1.2.

    Block reuse makes rounds cheap. Chunked context allows prompts longer than an iteration, but may cut
    drafts (`fitDraftTokens` of `microBatchScheduler.cpp`), so the plan decides on it; its default in 1.0 is
    off. Statistics of iterations are read every 50 ms (`take_kv_use`), so few are kept.
    """
    window = engine.max_attention_window
    config = trtllm.ExecutorConfig(
        kv_cache_config=trtllm.KvCacheConfig(
            enable_block_reuse=True,
            max_tokens=kv_budget.max_tokens,
            max_attention_window=None if window is None else [window],
            free_gpu_memory_fraction=kv_budget.free_gpu_memory_fraction,
        ),
        enable_chunked_context=engine.enable_chunked_context,
        iter_stats_max_iterations=_ITERATIONS,
        parallel_config=trtllm.ParallelConfig(device_ids=[device_id]),
        decoding_config=engine.own_draft.decoding(trtllm) if engine.own_draft else None,
    )
    # Otherwise a cache too small for one sequence would only shorten sequences, with a warning in the log.
    # Releases without the option ignore the attribute, but would refuse an argument.
    config.fail_fast_on_attention_window_too_large = True
    return config


_GIB = 2**30


@dataclass(frozen=True, slots=True)
class EngineLocation:
    """An engine directory and the GPU that runs it."""

    folder: Path
    device_id: int
    """CUDA's number of the GPU."""
    enable_chunked_context: bool = True
    """True if a prompt may take several iterations."""
    own_draft: RuntimeDraft | None = None
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
        read_engine(location.folder, trtllm.__version__, location.enable_chunked_context, location.own_draft)
        for location in locations
    ]
    target, device_id = locations[0], locations[0].device_id
    if not engines[0].limits.max_draft_len and not engines[0].own_draft:
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
            if engine.own_draft:  # A step has several rows of logits, of which the runtime masks one.
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
