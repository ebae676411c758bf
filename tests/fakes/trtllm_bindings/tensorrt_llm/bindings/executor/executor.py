"""The executor itself (`executor.cpp`, and `executorImpl.cpp` behind it): a queue, a thread, responses."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import math
import os
import threading
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, float32

from tensorrt_llm.bindings.executor import plan
from tensorrt_llm.bindings.executor.config import ExecutorConfig, ModelType
from tensorrt_llm.bindings.executor.errors import check, thrown
from tensorrt_llm.bindings.executor.request import Request, RequestType, SamplingConfig
from tensorrt_llm.bindings.executor.response import FinishReason, RequestPerfMetrics, Response, Result
from tensorrt_llm.bindings.executor.statistics import IterationStats, KvCacheStats
from tensorrt_llm.bindings.executor.strict import UInt64, convert
from tests.fakes.external_drafts import DraftLogits, ExternalDrafts
from trtspec.serving import executor as torch_side

IMPL = "executor/executorImpl.cpp"
BLOCK = 32
REASONS = {
    torch_side.FinishReason.NOT_FINISHED: FinishReason.NOT_FINISHED,
    torch_side.FinishReason.END_ID: FinishReason.END_ID,
    torch_side.FinishReason.LENGTH: FinishReason.LENGTH,
    torch_side.FinishReason.CANCELLED: FinishReason.CANCELLED,
}


class Executor:
    """Runs in leader mode, one rank. `MADE` are all that were made in this process.

    `KEEP` says how much the scheduler leaves of a draft (`fitDraftTokens` of microBatchScheduler.cpp).
    """

    MADE: ClassVar[list[Executor]] = []
    KEEP: ClassVar[staticmethod[[int], int]] = staticmethod(lambda length: length)

    def __init__(self, model_path: Path, model_type: ModelType, executor_config: ExecutorConfig) -> None:
        if not isinstance(model_path, (str, os.PathLike)):
            raise TypeError("__init__(): incompatible function arguments. model_path must be a path")
        convert(model_type, ModelType, "Executor.model_type")
        convert(executor_config, ExecutorConfig, "Executor.executor_config")
        if model_type is not ModelType.DECODER_ONLY:
            raise NotImplementedError(f"{model_type}: the stand-in has decoders only")
        self.config = executor_config
        self.requests: list[Request] = []
        self._plan = plan.load(Path(model_path), executor_config)
        self._ids = itertools.count(1)
        self._lock = threading.Condition()
        self._responses: dict[int, list[Response]] = {}
        self._terminated: set[int] = set()
        self._active: dict[int, int] = {}
        self._held: dict[int, list[int]] = {}
        self._cancelled: set[int] = set()
        self._shutdown_called = self._is_shutdown = False
        self._steps = 0
        self._failure: str | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="executionLoop", daemon=True)
        self._thread.start()
        self.MADE.append(self)

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def enqueue_request(self, request: Request) -> int:
        convert(request, Request, "enqueue_request.request")
        check(not self._shutdown_called, "Shutdown called, cannot enqueue requests", IMPL)
        request_id = next(self._ids)
        self.requests.append(request)
        self._loop.call_soon_threadsafe(self._fetch, request_id, request)
        return request_id

    def enqueue_requests(self, requests: list[Request]) -> list[int]:
        return [self.enqueue_request(request) for request in requests]

    def await_responses(self, *args: Any, **kwargs: Any) -> Any:
        """Overloads: `(timeout=None)`, `(id, timeout=None)`, `(ids, timeout=None)`."""
        which, timeout = _overload(*args, **kwargs)
        check(not self._shutdown_called, "Shutdown called", IMPL)
        seconds = None if timeout is None else timeout.total_seconds()
        if isinstance(which, list):
            return [self._await_one(request_id, seconds) for request_id in which]
        if which is not None:
            return self._await_one(which, seconds)
        with self._lock:
            self._lock.wait_for(lambda: self._responses or self._is_shutdown or self._failure, seconds)
            if self._failure is not None:
                raise thrown(self._failure, IMPL)
            return [response for request_id in sorted(self._responses) for response in self._take(request_id)]

    def get_num_responses_ready(self, id: int | None = None) -> int:
        check(not self._shutdown_called, "Shutdown called", IMPL)
        with self._lock:
            return sum(len(found) for key, found in self._responses.items() if id in (None, key))

    def cancel_request(self, id: int) -> None:
        """An id that is not active stays in the set: the request that gets it is cancelled."""
        check(not self._shutdown_called, "Shutdown called", IMPL)
        convert(id, UInt64, "cancel_request.id")
        with self._lock:
            if id in self._terminated:
                return
        self._cancelled.add(id)
        self._loop.call_soon_threadsafe(self._terminate_cancelled)

    def get_latest_iteration_stats(self) -> list[IterationStats]:
        """Those since the last call, `iter_stats_max_iterations` at most; here one for all of them."""
        check(not self._shutdown_called, "Shutdown called", IMPL)
        runtime = self._plan.runtime
        steps, self._steps = self._steps, runtime.progress
        if not self.config.iter_stats_max_iterations or steps == runtime.progress:
            return []
        stats, cache = IterationStats(), KvCacheStats()
        cache.tokens_per_block, cache.max_num_blocks = BLOCK, -(-(runtime.kv_tokens or 0) // BLOCK)
        cache.used_num_blocks = math.ceil((runtime.take_kv_use() or 0) * cache.max_num_blocks)
        cache.free_num_blocks = cache.max_num_blocks - cache.used_num_blocks
        if (reuse := runtime.kv_reuse) is not None:
            cache.reused_blocks = reuse.found // BLOCK
            cache.missed_blocks = -(-reuse.asked // BLOCK) - cache.reused_blocks
        stats.iter, stats.kv_cache_stats = runtime.progress, cache
        return [stats]

    def can_enqueue_requests(self) -> bool:
        return not self._shutdown_called

    def shutdown(self) -> None:
        """What is active runs to its end, which may take long; its responses are lost."""
        if self._shutdown_called:
            return
        self._shutdown_called = True
        with self._lock:
            if self._failure is None:
                self._lock.wait_for(lambda: not self._active)
            self._is_shutdown = True
            self._lock.notify_all()
        self._loop.call_soon_threadsafe(self._plan.free)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def break_down(self, message: str) -> None:
        """For tests: the execution loop is no more."""
        with self._lock:
            self._failure = message
            self._lock.notify_all()

    # On the execution thread.

    def _fetch(self, request_id: int, request: Request) -> None:
        try:
            self._validate(request)
        except RuntimeError as error:
            text = f"Encountered an error when fetching new request: {error}"
            self._append(Response(request_id, text))
            return
        if (problem := self._derails(request) or self._misfits(request)) is not None:
            self._fail_all(request_id, problem)
            return
        draft, drafts = request.external_draft_tokens_config, self._plan.accepts > 0
        kept = self.KEEP(len(draft.tokens)) if draft else 0
        # `ban_bad_words` lets token 0 through, and an engine that drafts has no layer that bans.
        banned = [] if drafts else [word for word in request.bad_words or [] if word[-1] != 0]
        sampling = _sampling(request.sampling_config, verifies=self._plan.max_draft_len > 0)
        ours = torch_side.Request(
            input_token_ids=request.input_token_ids,
            max_tokens=min(request.max_tokens, self._room(request)),
            draft_token_ids=draft.tokens[:kept] if draft else (),
            end_id=request.end_id,
            bad_words=banned,
            sampling=_of_drafts(sampling) if drafts else sampling,
            streaming=request.streaming,
            embedding_bias=_bias(request.embedding_bias),
            guide=_guide(request),
        )

        def listen(response: torch_side.Response) -> None:
            self._hear(request_id, request, response, kept)

        runtime = self._plan.runtime
        if isinstance(runtime, ExternalDrafts) and draft and draft.logits is not None:
            logits = DraftLogits(draft.logits, draft.acceptance_threshold)
            self._active[request_id] = runtime.enqueue_request(ours, listen, logits)
        else:
            self._active[request_id] = runtime.enqueue_request(ours, listen)
        self._terminate_cancelled()

    def _room(self, request: Request) -> int:
        """What is left of `max_seq_len` for an engine that drafts: the torch executor reckons for others."""
        length = len(request.input_token_ids)
        return self._plan.max_seq_len - self._plan.max_draft_len - length if self._plan.accepts else 2**31

    def _derails(self, request: Request) -> str | None:
        """What ends all requests at work, or makes wrong texts, which nobody may ask for
        (`guidedDecoder.cpp`)."""
        config, sampling = self.config.guided_decoding_config, request.sampling_config
        if request.guided_decoding_params is None or config is None:
            return None
        if request.external_draft_tokens_config or self._plan.accepts:
            return "only the first row of a verification has a mask"
        if [request.end_id] != config.stop_token_ids:
            return "GrammarMatcher has terminated after accepting the stop token"
        if request.bad_words or sampling.min_tokens:
            return "a token was not accepted, and nobody looked"
        return None

    def _misfits(self, request: Request) -> str | None:
        """What ends all requests at work when draft logits are copied (`BufferManager::copy`, of
        `createNewDecoderRequests.cpp`)."""
        draft = request.external_draft_tokens_config
        if draft is None or draft.logits is None:
            return None
        if str(draft.logits.dtype) != f"torch.{self._plan.logits_dtype}":
            return "[TensorRT-LLM][ERROR] Assertion failed: Incompatible data types"
        if draft.logits.shape[1] != self._plan.vocab_size:
            return "[TensorRT-LLM][ERROR] Assertion failed: Incompatible buffer sizes"
        return None

    def _fail_all(self, request_id: int, problem: str) -> None:
        """`terminateActiveRequests`."""
        text = f"Encountered an error in forwardAsync function: {problem}"
        for active, ours in list(self._active.items()):
            self._append(Response(active, text))
            self._plan.runtime.cancel_request(ours)
        self._append(Response(request_id, text))

    def _validate(self, request: Request) -> None:
        """`LlmRequest::validate`: token ids are not looked at, and a prompt may leave no room for output."""
        length, loaded = len(request.input_token_ids), self._plan
        draft = request.external_draft_tokens_config
        end_id, source = request.end_id, "batch_manager/llmRequest.cpp"
        if end_id is not None:
            message = f"EndId ({end_id}) is not within acceptable range [-1, {loaded.vocab_size})."
            check(-1 <= end_id < loaded.vocab_size, message, source)
        if length > loaded.max_input_len:
            message = f"Prompt length ({length}) exceeds maximum input length ({loaded.max_input_len})."
            raise thrown(
                f"[TensorRT-LLM][ERROR] {message} Set log level to info and check TRTGptModel logs", source
            )
        if draft and len(draft.tokens) > loaded.max_draft_len:
            message = f"Draft tokens length ({len(draft.tokens)}) exceeds maximum draft tokens length"
            raise thrown(f"[TensorRT-LLM][ERROR] {message} ({loaded.max_draft_len}).", source)
        if request.embedding_bias is not None:
            shape, kind = tuple(request.embedding_bias.shape), request.embedding_bias.dtype
            source = "batch_manager/createNewDecoderRequests.cpp"
            check(shape == (loaded.vocab_size,) and kind == float32, "embedding bias", source)
        if request.guided_decoding_params and not self.config.guided_decoding_config:
            message = (
                "Request is specified with GuidedDecodingParams, but GuidedDecoder is not setup. Please "
            )
            check(False, f"{message}provide a valid GuidedDecodingConfig to setup GuidedDecoder.", IMPL)
        output = request.output_config
        if output.return_generation_logits and not self.config.gather_generation_logits:
            message = (
                "To return generation logits, gather_generation_logits must be enabled in ExecutorConfig"
            )
            check(False, message, IMPL)
        for name in ("return_log_probs", "return_context_logits", "return_generation_logits"):
            if getattr(output, name):
                raise NotImplementedError(f"OutputConfig.{name}: the stand-in cannot do this")
        if request.type is not RequestType.REQUEST_TYPE_CONTEXT_AND_GENERATION or request.lookahead_config:
            raise NotImplementedError("the stand-in cannot do this request")

    def _hear(self, request_id: int, request: Request, response: torch_side.Response, kept: int) -> None:
        if request_id not in self._active:
            return
        if response.error is not None and response.error.startswith("Guide refused"):
            self._active.pop(request_id)
            self._fail_all(request_id, response.error)
            return
        if response.error is not None:
            # The torch executor refuses what a GPU would have stumbled over.
            text = f"Encountered an error in forwardAsync function: CUDA error: {response.error}"
            self._append(Response(request_id, text))
            return
        result = Result()
        tokens = [*self._held.pop(request_id, []), *response.token_ids]
        # A step of an engine that drafts brings a token, and what was accepted: any number up to its longest.
        most = self._plan.accepts
        if most and not response.is_final and len(tokens) <= tokens[0] % (most + 1):
            self._held[request_id] = tokens
            return
        if not request.streaming and not request.output_config.exclude_input_from_output:
            tokens = [*request.input_token_ids, *tokens]
        result.output_token_ids = [tokens]
        result.is_final = result.is_sequence_final = response.is_final
        reason = REASONS[response.finish_reason]
        if request.external_draft_tokens_config and reason is not FinishReason.CANCELLED:
            reason = FinishReason.NOT_FINISHED  # NVIDIA does not say which it is, so nobody may rely on it.
        result.finish_reasons = [reason]
        if request.output_config.return_perf_metrics:
            result.request_perf_metrics = metrics = RequestPerfMetrics()
            metrics.speculative_decoding.total_draft_tokens = kept
            # `loadOrAllocateBlocks` of kvCacheManager.cpp counts a block that is reused in part.
            metrics.kv_cache_metrics.num_reused_blocks = -(-(response.num_reused or 0) // BLOCK)
        self._append(Response(request_id, result=result), response.is_final)

    def _append(self, response: Response, is_final: bool = True) -> None:
        with self._lock:
            self._responses.setdefault(response.request_id, []).append(response)
            if is_final:
                self._active.pop(response.request_id, None)
            self._lock.notify_all()

    def _terminate_cancelled(self) -> None:
        for request_id in self._cancelled & set(self._active):
            self._cancelled.discard(request_id)
            self._plan.runtime.cancel_request(self._active[request_id])

    # With the lock.

    def _await_one(self, request_id: int, seconds: float | None) -> list[Response]:
        with self._lock:
            if request_id in self._terminated:
                return [
                    Response(request_id, f"ReqId {request_id} has already been processed and was terminated.")
                ]
            self._lock.wait_for(lambda: request_id in self._responses or self._is_shutdown, seconds)
            return self._take(request_id)

    def _take(self, request_id: int) -> list[Response]:
        found = self._responses.pop(request_id, [])
        if any(response.has_error() or response.result.is_final for response in found):
            self._terminated.add(request_id)
        return found


def _bias(bias: Tensor | None) -> dict[int, float]:
    return {} if bias is None else {i: value for i, value in enumerate(bias.tolist()) if value}


def _guide(request: Request) -> torch_side.Guide | None:
    params = request.guided_decoding_params
    if params is None:
        return None
    return torch_side.Guide(torch_side.GuideType[params.guide_type.name], params.guide or "")


def _overload(*args: Any, **kwargs: Any) -> tuple[int | list[int] | None, datetime.timedelta | None]:
    which, rest = None, list(args)
    if rest and isinstance(rest[0], (int, list)):
        which = rest.pop(0)
    elif "id" in kwargs or "ids" in kwargs:
        which = kwargs.pop("id", None) or kwargs.pop("ids", None)
    timeout = rest.pop(0) if rest else kwargs.pop("timeout", None)
    if rest or kwargs or not isinstance(timeout, (datetime.timedelta, type(None))):
        raise TypeError("await_responses(): incompatible function arguments.")
    return which, timeout


def _sampling(config: SamplingConfig, verifies: bool) -> torch_side.SamplingConfig:
    """`regularizeTopKTopP`: without either, the best token, whatever the temperature; the seed is 0 then.

    An engine that verifies external drafts ignores min_p without a word.
    """
    for name in ("top_p_min", "top_p_decay", "no_repeat_ngram_size", "num_return_sequences"):
        if getattr(config, name) is not None:
            raise NotImplementedError(f"SamplingConfig.{name}: the stand-in cannot do this")
    top_k, top_p = config.top_k or 0, config.top_p or 0.0
    if top_k == 0 and top_p == 0.0:
        top_k = 1
    return torch_side.SamplingConfig(
        temperature=config.temperature,
        top_k=top_k,
        top_p=top_p or 1.0,
        seed=config.seed or 0,
        repetition_penalty=config.repetition_penalty,
        presence_penalty=config.presence_penalty,
        frequency_penalty=config.frequency_penalty,
        min_tokens=config.min_tokens,
        min_p=None if verifies else config.min_p,
    )


def _of_drafts(sampling: torch_side.SamplingConfig) -> torch_side.SamplingConfig:
    """`DecodingMode` of drafts inside: what else is asked for has no effect, and nobody is told."""
    if sampling.top_k != 1:
        raise NotImplementedError("an engine that drafts draws by top-k or not at all: neither is wanted")
    return torch_side.SamplingConfig(top_k=1, min_tokens=sampling.min_tokens)


__all__ = ["Executor"]
