"""The executor for TensorRT-LLM's engines: the C++ runtime in this process, through NVIDIA's bindings."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executor import FinishReason, KvReuse, Limits, Listener, Request, Response
from trtspec.serving.executors.draft_logits import DraftLogits, Rows, needs_logits
from trtspec.serving.executors.tensorrt_llm.bindings import one_line
from trtspec.serving.executors.tensorrt_llm.budget import KvBudget
from trtspec.serving.executors.tensorrt_llm.engine import TrtLlmEngine
from trtspec.serving.executors.tensorrt_llm.guided import (
    GUIDE_TYPES,
    GuidedVocabulary,
    check_guided,
    to_config,
)
from trtspec.serving.executors.tensorrt_llm.listener import ResponseThread
from trtspec.serving.executors.tensorrt_llm.translation import from_bindings, to_bindings
from trtspec.serving.executors.validation import Refused, validate

log = logging.getLogger(__name__)

_ITERATIONS = 64


class TrtLlmExecutor:
    """Implements `trtspec.serving.executor.Executor` with `tensorrt_llm.bindings.executor.Executor`.

    `trtllm` is that module. It runs one engine of one rank on the GPU `device_id`, CUDA's number of it.
    With `guided` it follows guides, which must have been read before (see `guided.py`). Raises
    `EngineLoadError`.

    Requests are validated here, because the runtime checks neither token ids nor whether numbers are finite,
    and accepts a prompt that leaves no room for output. Seeds go to the engine as they are; its random
    numbers depend on how a text is cut into requests, so a seed gives the same text only with the same
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
        self._trtllm, self._limits, self._guided = trtllm, engine.limits, guided
        if guided is not None:
            self._limits = replace(engine.limits, guide_types=GUIDE_TYPES)
        try:
            config = _config(trtllm, engine, device_id, kv_budget)
            if guided is not None:
                config.guided_decoding_config = to_config(trtllm, guided)
            runtime = trtllm.Executor(engine.folder, trtllm.ModelType.DECODER_ONLY, config)
        except Exception as error:
            raise EngineLoadError(engine.folder, one_line(error)) from error
        self._runtime: Any = runtime
        self._waiting: dict[int, Listener] = {}  # of requests that have not had their final response
        form = engine.limits.draft_logits
        self._logits = None if form is None else DraftLogits(engine.limits.max_draft_len, form)
        self._lent: dict[int, tuple[Rows, list[int]]] = {}
        self._refused_ids = itertools.count(-1, -1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: str | None = None
        self._kv_tokens, self._progress, self._kv_use = kv_budget.max_tokens, 0, 0.0
        self._kv_reuse: KvReuse | None = None
        self._responses = ResponseThread(runtime, self._heard, self._failed)

    @property
    def limits(self) -> Limits:
        return self._limits

    @property
    def kv_tokens(self) -> int | None:
        return self._kv_tokens

    def take_kv_use(self) -> float | None:
        """Returns the most blocks that an iteration had in use, as a share of all.

        An iteration may take longer than the time between two calls; then what was said last holds.
        """
        if self._ended is not None:
            return None
        try:
            iterations = self._runtime.get_latest_iteration_stats()
        except Exception as error:  # It has ended meanwhile, of which the responses tell.
            log.warning("the engine has no statistics: %s", one_line(error))
            return None
        found = [each.kv_cache_stats for each in iterations if each.kv_cache_stats is not None]
        if found:
            last = found[-1]
            asked = last.reused_blocks + last.missed_blocks
            self._kv_reuse = KvReuse(
                asked * last.tokens_per_block, last.reused_blocks * last.tokens_per_block
            )
            self._kv_use = max(each.used_num_blocks / each.max_num_blocks for each in found)
        elif not self._waiting:
            self._kv_use = 0.0
        return self._kv_use

    @property
    def kv_reuse(self) -> KvReuse | None:
        """Says it of whole blocks, since the engine finds no parts of them, as of the last `take_kv_use`."""
        return self._kv_reuse

    @property
    def progress(self) -> int:
        return self._progress

    @property
    def failure(self) -> str | None:
        return self._ended

    def enqueue_request(self, request: Request, listener: Listener) -> int:
        self._loop = asyncio.get_running_loop()
        try:
            if self._ended is not None:
                raise Refused(self._ended)
            valid = validate(request, self._limits)
            check_guided(request, None if self._guided is None else self._guided.stop_token_id)
            rows = self._logits.lend(valid.draft) if self._logits and needs_logits(request, valid) else None
            told = to_bindings(self._trtllm, request, valid, self._limits.vocab_size, rows)
            request_id: int = self._runtime.enqueue_request(told)
        except Exception as error:  # Ours, or whatever the bindings raise for what they refuse.
            request_id = next(self._refused_ids)
            refusal = Response(request_id, [], is_final=True, error=one_line(error))
            self._loop.call_soon(listener, refusal)
            return request_id
        self._waiting[request_id] = listener
        if rows is not None:
            self._lent[request_id] = rows, valid.draft
        return request_id

    def cancel_request(self, request_id: int) -> None:
        """Cancels a request, which the engine ends before its next iteration; later responses are dropped.

        The engine never gets the id of a finished request: it would keep it, and cancel a later request that
        gets the same one.
        """
        listener = self._waiting.pop(request_id, None)
        if listener is None:
            return
        self._lent.pop(request_id, None)  # The engine may still read it.
        if self._ended is None:
            self._runtime.cancel_request(request_id)
        cancelled = Response(request_id, [], is_final=True, finish_reason=FinishReason.CANCELLED)
        asyncio.get_running_loop().call_soon(listener, cancelled)

    def shutdown(self) -> None:
        """Cancels all requests, since the engine's own shutdown would run them to their end, and ends it."""
        if self._runtime is None:
            return
        for request_id in list(self._waiting):
            self.cancel_request(request_id)
        self._ended = "The engine is shut down"
        self._responses.shutdown()
        self._runtime = None

    def _heard(self, responses: list[Any]) -> None:
        self._progress += 1
        self._post(self._deliver, responses)

    def _failed(self, error: str) -> None:
        log.error("the engine failed: %s", error)
        self._ended = f"The engine failed: {error}"
        self._post(self._fail_all)

    def _post(self, work: Callable[..., None], *arguments: Any) -> None:
        """Has `work` called on the loop, from the thread of the responses."""
        if self._loop is not None:
            with suppress(RuntimeError):  # The loop is closed, so nobody is left to hear it.
                self._loop.call_soon_threadsafe(work, *arguments)

    def _deliver(self, responses: Iterable[Any]) -> None:
        left = deque(responses)
        try:
            while left:
                self._tell(left.popleft())
        finally:  # A listener that raises must not stop the others.
            if left and self._loop is not None:
                self._loop.call_soon(self._deliver, left)

    def _tell(self, response: Any) -> None:
        listener = self._waiting.get(response.request_id)
        if listener is None:
            return
        translated = from_bindings(response)
        if translated.is_final:
            del self._waiting[translated.request_id]
            if self._logits and (lent := self._lent.pop(translated.request_id, None)):
                self._logits.take_back(*lent)
        listener(translated)

    def _fail_all(self) -> None:
        assert self._loop is not None
        for request_id, listener in self._waiting.items():
            failure = Response(request_id, [], is_final=True, error=self._ended)
            self._loop.call_soon(listener, failure)
        self._waiting.clear()


def _config(trtllm: Any, engine: TrtLlmEngine, device_id: int, kv_budget: KvBudget) -> Any:
    """Returns an `ExecutorConfig` of arguments that every release from 1.0 to 1.2 has.

    Block reuse makes rounds cheap. Chunked context allows texts longer than an iteration but may cut drafts
    (`fitDraftTokens` of `microBatchScheduler.cpp`), so the plan decides on it; 1.0 has it off by default.
    Statistics of iterations are read every 50 ms (`take_kv_use`), so few are kept.
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
        decoding_config=engine.inside.decoding(trtllm) if engine.inside else None,
    )
    # A cache too small for one text would otherwise make texts shorter, with a warning in the log. It is set
    # as an attribute, which releases without the option ignore, where their constructor would refuse it.
    config.fail_fast_on_attention_window_too_large = True
    return config
