"""The executor for TensorRT-LLM's engines, with the C++ runtime in this process by NVIDIA's bindings.

An engine directory is checked first: one that would load for minutes and then fail, or load and misbehave, is
refused here. Its keys are those of `Engine.save` (`tensorrt_llm/builder.py`).
"""

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
from trtspec.serving.executor import FinishReason, KvReuse, Limits, Listener, Request, Response
from trtspec.serving.executors.draft_logits import DraftLogits, Rows, needs_logits
from trtspec.serving.executors.tensorrt_llm.bindings import (
    ResponseThread,
    free_memory,
    from_bindings,
    one_line,
    to_bindings,
)
from trtspec.serving.executors.tensorrt_llm.guided import (
    GUIDE_TYPES,
    LOGITS_DTYPES,
    GuidedVocabulary,
    check_guided,
    to_config,
)
from trtspec.serving.executors.tensorrt_llm.runtime_draft import RuntimeDraft
from trtspec.serving.executors.validation import (
    DRAFT_TOKENS_EXTERNAL,
    INSIDE,
    Refused,
    engine_config,
    limits_of,
    validate,
)

IGNORED_WITH_DRAFTS = frozenset({"min_p"})
"""The options that an engine for external drafts ignores, also without a draft: it decodes all requests in
`DecodingMode::ExternalDraftTokens`, which lacks `kUseMinP` (`executor/types.h`, `getDecodingMode`)."""
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class TrtLlmEngine:
    """An engine that this process can serve."""

    folder: Path
    limits: Limits
    max_attention_window: int | None
    """The number of tokens that a token sees; None for the whole sequence."""
    weight_bytes: int
    """The size of the engine's file."""
    kv_bytes: int
    """The size of a token in the engine's KV cache."""
    enable_chunked_context: bool = True
    """True if a prompt may take several iterations."""
    logits_dtype: str = "float32"
    own_draft: RuntimeDraft | None = None
    """The engine's own draft; None if it has none."""


def read_engine(
    folder: Path, release: str, enable_chunked_context: bool = True, own_draft: RuntimeDraft | None = None
) -> TrtLlmEngine:
    """Returns the engine; raises `EngineLoadError` if this release cannot run it in one process."""
    with engine_config(folder) as document:
        model, build = document["pretrained_config"], document["build_config"]
        _check(folder, release, document)
        limits = limits_of(document)
        # Without chunks a prompt fits an iteration. The runtime ignores the build's max_input_len
        # (`batch_manager/trtGptModel.h`).
        most = limits.max_input_len if enable_chunked_context else int(build["max_num_tokens"])
        longest, mode = min(limits.max_input_len, most), int(build["speculative_decoding_mode"])
        _check_own_draft(folder, mode, int(build["max_draft_len"]), own_draft)
        # The engine lacks the window for the runtime: `LLaMAConfig.from_hugging_face` drops it.
        window = int(limits.max_seq_len if model.get("sliding_window") is None else model["sliding_window"])
        return TrtLlmEngine(
            folder=folder,
            limits=replace(
                limits,
                max_input_len=longest,
                ignored_options=IGNORED_WITH_DRAFTS
                if mode == DRAFT_TOKENS_EXTERNAL
                else limits.ignored_options,
            ),
            max_attention_window=None if window >= limits.max_seq_len else window,
            weight_bytes=sum(file.stat().st_size for file in folder.glob("rank0*")),
            kv_bytes=_kv_bytes(model),
            enable_chunked_context=enable_chunked_context,
            logits_dtype=str(model.get("logits_dtype", "float32")),
            own_draft=own_draft,
        )


def _check(folder: Path, release: str, document: dict[str, Any]) -> None:
    version, plugins = document["version"], document["build_config"]["plugin_config"]
    if version != release:
        problem = f"was built by TensorRT-LLM {version}, but this is {release}"
        raise EngineLoadError(folder, f"{problem}; serve it with the image of {version}, or build it again")
    ranks = document["pretrained_config"]["mapping"]["world_size"]
    if ranks != 1:
        problem = f"has {ranks} ranks, but one process runs only engines of one rank"
        raise EngineLoadError(folder, f"{problem}; serve it with layout: bls")
    if not (folder / "rank0.engine").is_file():
        raise EngineLoadError(folder, "has no rank0.engine; build it again")
    if not plugins["use_paged_context_fmha"]:
        problem = "was built without use_paged_context_fmha, so no round can reuse the KV cache of the"
        raise EngineLoadError(folder, f"{problem} previous one; build it again")


def _check_own_draft(folder: Path, mode: int, drafts: int, own_draft: RuntimeDraft | None) -> None:
    """Raises `EngineLoadError` unless the engine was built for the draft."""
    if own_draft is None:
        if mode in INSIDE:
            problem = "drafts by itself, but config.pbtxt lacks the parameters for that"
            raise EngineLoadError(folder, f"{problem}; write the model repository again")
    elif (own_draft.mode, own_draft.num_drafted) != (mode, drafts):
        built = f"{folder} was built for mode {mode} with max_draft_len {drafts}"
        given = f"this is of mode {own_draft.mode} with {own_draft.num_drafted}"
        raise EngineLoadError(own_draft.key, f"{own_draft}: {built}, and {given}")


def _kv_bytes(model: dict[str, Any]) -> int:
    """Returns the bytes of a token in all layers (`calculateCacheSizePerToken` of kvCacheManager.cpp)."""
    heads = model.get("num_key_value_heads") or model["num_attention_heads"]
    head_size = model.get("head_size") or model["hidden_size"] // model["num_attention_heads"]
    quantized = (model.get("quantization") or {}).get("kv_cache_quant_algo")
    element = 1 if quantized else _BYTES[model["dtype"]]
    layers = int(model["num_hidden_layers"])
    if "eagle_net_config" in model:
        layers += int(model["eagle_net_config"]["num_hidden_layers"])
    return 2 * layers * int(heads) * int(head_size) * element


_MOST_TOKENS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class KvBudget:
    """The size of one engine's KV cache, in the terms of `KvCacheConfig`."""

    free_gpu_memory_fraction: float
    """The share of the memory that is free after the engine is loaded."""
    max_tokens: int | None = None
    """The largest number of tokens in the cache; None for no limit."""


def tokens_of_each(free: int, fraction: float, engines: Sequence[TrtLlmEngine]) -> int:
    """Returns the number of tokens of each KV cache if all have the same number.

    `free` is in bytes, before any engine is loaded. The caches together take `fraction` of the memory that
    the weights leave. Draft and target cache the same sequences, so a larger cache of one would be useless.

    TensorRT-LLM takes its fraction of the memory that is free at the time. The draft is loaded first, with
    this number as its limit: without one it would take nearly all memory, and the target would not fit. The
    target then takes the same fraction of the rest, so activations and buffers need no estimate here.
    """
    left = free - sum(engine.weight_bytes for engine in engines)
    tokens = int(max(0, left) * fraction) // sum(engine.kv_bytes for engine in engines)
    return min(tokens, _MOST_TOKENS)


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
