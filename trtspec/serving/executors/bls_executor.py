"""The executor for an engine that is another Triton model, by business logic scripting (BLS).

Names and shapes of tensors are those of NVIDIA's `all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt`,
each with the batch dimension that clients send: one sequence, one beam.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trtspec.serving.errors import EngineFailure
from trtspec.serving.executor import (
    LEAST_LOG_PROB,
    FinishReason,
    KvReuse,
    Limits,
    Listener,
    LogProb,
    Request,
    Response,
    SamplingConfig,
)
from trtspec.serving.executors.draft_logits import DraftLogits, Rows, needs_logits
from trtspec.serving.executors.tensorrt_llm.guided import BLS_GUIDE_TYPES, check_guided
from trtspec.serving.executors.validation import Refused, Valid, validate
from trtspec.serving.state import at_token, unsplittable_options
from trtspec.serving.text import Text
from trtspec.serving.thread_pool import PooledCall, ThreadPool

Arrays = Mapping[str, npt.NDArray[Any]]
Outputs = Mapping[str, list[Any]]
"""The numbers of each tensor of a response, whatever its shape."""

_NO_TOKEN = np.zeros([1, 1], np.int32)


def request_arrays(
    request: Request, valid: Valid, vocab_size: int, draft_logits: Rows | None = None
) -> dict[str, npt.NDArray[Any]]:
    """Returns the input tensors of a request, which ask for an output without the prompt.

    They ask for what `num_verified` and `num_reused_blocks` read too.
    """
    prompt = np.frombuffer(valid.text.packed(valid.prompt_len), np.int32)[None]
    arrays = {
        "input_ids": prompt,
        "input_lengths": np.array([[prompt.size]], np.int32),
        "request_output_len": np.array([[valid.max_tokens]], np.int32),
        "exclude_input_in_output": np.array([[True]]),
        "return_perf_metrics": np.array([[True]]),
    }
    if valid.draft_token_ids:
        arrays["draft_input_ids"] = np.array([valid.draft_token_ids], np.int32)
    if draft_logits is not None:
        arrays["draft_logits"] = draft_logits[None]
    if request.return_log_probs:
        arrays["return_log_probs"] = np.array([[True]])
    if request.end_id is not None:
        arrays["end_id"] = np.array([[request.end_id]], np.int32)
    if request.embedding_bias:
        arrays["embedding_bias"] = bias = np.zeros([1, vocab_size], np.float32)
        bias[0, list(request.embedding_bias)] = list(request.embedding_bias.values())
    if words := request.bad_words:
        # The tokens of all words, and where each word ends, filled up with -1.
        tokens, ends = list(chain.from_iterable(words)), list(accumulate(map(len, words)))
        arrays["bad_words_list"] = np.array([[tokens, ends + [-1] * (len(tokens) - len(ends))]], np.int32)
    if request.guide is not None:
        arrays["guided_decoding_guide_type"] = _string(request.guide.guide_type.value)
        if request.guide.guide:
            arrays["guided_decoding_guide"] = _string(request.guide.guide)
    for name, value, dtype in _sampling(request.sampling):
        if value is not None:
            arrays[name] = np.array([[value]], dtype)
    return arrays


def stop_arrays() -> dict[str, npt.NDArray[Any]]:
    """Returns the tensors that stop the request of the same id; the model demands a prompt with them."""
    return {
        "input_ids": _NO_TOKEN,
        "input_lengths": _NO_TOKEN,
        "request_output_len": _NO_TOKEN,
        "stop": np.array([[True]]),
    }


def new_tokens(outputs: Outputs) -> list[int]:
    """Returns a response's tokens: of `output_ids` int32 [1, 1, n] the first `sequence_length` [1, 1]."""
    return outputs["output_ids"][: outputs["sequence_length"][0]]


def num_verified(outputs: Outputs) -> int | None:
    """Returns `total_draft_tokens` [1, 1], which leaves out what was trimmed of a draft; None without it.

    `updateNumTokensPerIteration` of `batch_manager/llmRequest.h` counts it, behind `discardDraftTokens`.
    """
    found = outputs.get("total_draft_tokens")
    return found[0] if found else None


def num_reused_blocks(outputs: Outputs) -> int | None:
    """Returns `kv_cache_reused_blocks` [1, 1], the reused blocks of the KV cache; None without it."""
    found = outputs.get("kv_cache_reused_blocks")
    return found[0] if found else None


def new_log_probs(outputs: Outputs) -> list[LogProb]:
    """Returns the log-probabilities of a response's tokens, `output_log_probs` float32 [1, 1, n]."""
    return [LogProb(max(value, LEAST_LOG_PROB)) for value in outputs["output_log_probs"]]


def _string(text: str) -> npt.NDArray[Any]:
    return np.array([[text.encode()]], np.object_)


def _sampling(sampling: SamplingConfig) -> list[tuple[str, Any, type]]:
    """Returns name, value and dtype of each sampling tensor.

    Without `runtime_top_k` and `runtime_top_p` TensorRT-LLM takes the best token, whatever the temperature is
    (`regularizeTopKTopP` of layers/layerUtils.h), so sampling from all tokens asks for top-p 1.
    """
    penalties = [
        ("repetition_penalty", sampling.repetition_penalty, np.float32),
        ("presence_penalty", sampling.presence_penalty, np.float32),
        ("frequency_penalty", sampling.frequency_penalty, np.float32),
        ("min_tokens", sampling.min_tokens, np.int32),
    ]
    if sampling.is_greedy:
        return [("runtime_top_k", 1, np.int32), *penalties]
    top_p = sampling.top_p if sampling.top_p is not None or sampling.top_k else 1.0
    return [
        ("runtime_top_k", sampling.top_k, np.int32),
        ("runtime_top_p", top_p, np.float32),
        ("temperature", sampling.temperature, np.float32),
        ("seed", None if sampling.seed is None else sampling.seed % 2**64, np.uint64),
        *penalties,
    ]


log = logging.getLogger(__name__)

HAS_NO_TENSOR = frozenset({"min_p"})
"""What NVIDIA's C++ backend never reads (`getSamplingConfigFromTensors` of `src/utils.cc`)."""
_LONGEST_PIECE = 16


class BlsModel(Protocol):
    """A Triton model of the same server, which many threads call."""

    def infer(self, inputs: Arrays, request_id: str) -> Outputs:
        """Waits for the response, and returns its outputs, none if it is empty; raises `EngineFailure`."""


@dataclass(slots=True)
class BlsCall:
    """A request that has not had its final response."""

    request: Request
    valid: Valid
    listener: Listener
    num_tokens: int = 0
    """The number of tokens that the listener has had so far."""
    num_reused: int | None = None
    """The prompt's tokens that the KV cache had (`Response.num_reused`)."""
    job: PooledCall | None = None
    draft_logits: Rows | None = None

    @property
    def is_whole(self) -> bool:
        """True if the request may not be split into several (`unsplittable_options`)."""
        sampling, guide = self.request.sampling, self.request.guide
        return bool(unsplittable_options(sampling, guide, resumes_guides=False) or sampling.min_tokens)


class BlsExecutor:
    """Implements `trtspec.serving.executor.Executor` with a model that has the tensors of `tensorrt_llm`.

    The model is not decoupled: its answer to a call is one response. Triton's Python backend crashes when
    calls of decoupled models overlap (triton-inference-server/server #8922; seen with 2.51 too), and NVIDIA's
    coordinator needs such models as well. So a stream is a series of requests, each a little longer, which
    continue one another as rounds do.

    Every call blocks, so each request in flight has a thread; there are as many threads as the engine takes
    requests at once. Requests are validated here, since the model's own refusals would cost a hop and differ
    between backends. The tensors say neither why a request ended, which follows from the number of tokens,
    nor the size of the KV cache, so the deployment gives `kv_tokens`. With `guide_end_id`, the end token at
    which the model ends guided texts, guides are handed on, each in one request (`unsplittable_options`).
    """

    # A model whose process is gone takes the server with it, and one that hangs shows no progress.
    failure: str | None = None
    kv_reuse: KvReuse | None = None

    def __init__(
        self, model: BlsModel, limits: Limits, kv_tokens: int | None = None, guide_end_id: int | None = None
    ) -> None:
        # `draft_logits` of the model's `config.pbtxt` are float32.
        form = limits.draft_logits if limits.draft_logits and limits.draft_logits.dtype == "float32" else None
        self.limits = replace(
            limits,
            ignored_options=limits.ignored_options | HAS_NO_TENSOR,
            max_top_log_probs=0,  # NVIDIA's model has no tensor for them.
            guide_types=frozenset() if guide_end_id is None else BLS_GUIDE_TYPES,
            draft_logits=form,
        )
        self._logits = None if form is None else DraftLogits(limits.max_draft_len, form)
        self._guide_end_id = guide_end_id
        self.kv_tokens, self._num_answers = kv_tokens, 0
        self._model = model
        self._calls: dict[int, BlsCall] = {}
        self._ids, self._prefix = itertools.count(1), uuid.uuid4().hex
        self._threads = ThreadPool(limits.max_batch_size, "bls")
        self._stops = ThreadPool(1, "bls-stop")  # A stop must not wait behind what it is to stop.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_shut_down = False

    @property
    def progress(self) -> int:
        """The number of answers. While a request runs whole it rises with time: nothing is heard of such a
        request before its end, and the time limit of the request bounds it."""
        is_silent = any(call.is_whole for call in list(self._calls.values()))
        return self._num_answers + (time.monotonic_ns() if is_silent else 0)

    def take_kv_use(self) -> float | None:
        """Returns None: no tensor says it. NVIDIA's C++ backend exports a metric of its own."""
        return None

    def enqueue_request(self, request: Request, listener: Listener) -> int:
        self._loop, request_id = asyncio.get_running_loop(), next(self._ids)
        try:
            if self._is_shut_down:
                raise Refused("The engine is shut down")
            call = BlsCall(request, validate(request, self.limits), listener)
            check_guided(request, self._guide_end_id)
        except Refused as refused:
            refusal = Response(request_id, [], is_final=True, error=str(refused))
            self._loop.call_soon(listener, refusal)
            return request_id
        self._calls[request_id] = call
        if self._logits and needs_logits(request, call.valid):
            call.draft_logits = self._logits.lend(call.valid.draft_token_ids)
        # The text may grow while the request runs, so its tokens of now are packed here.
        valid = replace(call.valid, max_tokens=next(pieces(call)))
        first = request_arrays(request, valid, self.limits.vocab_size, call.draft_logits)
        call.job = self._threads.submit(partial(self._run, request_id, call, first))
        return request_id

    def cancel_request(self, request_id: int) -> None:
        call = self._calls.pop(request_id, None)
        if call is None:
            return
        asyncio.get_running_loop().call_soon(call.listener, _cancelled(request_id))
        if call.job is not None and not self._threads.give_up(call.job):
            self._stops.submit(partial(self._stop, request_id))

    def shutdown(self) -> None:
        """Cancels what is in flight; Triton unloads the model itself."""
        for request_id in reversed(list(self._calls)):  # The last first, before a free thread takes it up.
            self.cancel_request(request_id)
        self._is_shut_down = True
        self._threads.close()
        self._stops.submit(self._stops.close)

    # On a thread.

    def _run(self, request_id: int, call: BlsCall, arrays: Arrays) -> None:
        valid, text = call.valid, Text(())
        try:
            for size in pieces(call):
                if request_id not in self._calls:
                    return
                if text:
                    arrays = request_arrays(*_continued(call, text, size), self.limits.vocab_size)
                found = self._model.infer(arrays, self._name(request_id))
                if not found:
                    self._post(self._drop, request_id)
                    return
                tokens = new_tokens(found)
                log_probs = new_log_probs(found) if call.request.return_log_probs else None
                verified = num_verified(found) if valid.draft_token_ids else None
                if not text and (blocks := num_reused_blocks(found)) is not None:
                    call.num_reused = self.limits.reused_tokens(blocks)
                if verified is None and needs_logits(call.request, valid):
                    # Drawing again where the end was met would make texts longer than the target's.
                    raise EngineFailure("the model returns no total_draft_tokens for a sampled draft")
                reused, reason = call.num_reused, FinishReason.NOT_FINISHED
                said = Response(request_id, tokens, False, reason, None, log_probs, verified, reused)
                self._post(self._take, said)
                if len(tokens) < size:
                    break
                if size < valid.max_tokens:
                    text = Text((text or valid.text[: valid.prompt_len]) + tokens)
        except Exception as error:  # Whatever it is, nothing more will be heard of this request.
            self._post(self._fail, request_id, str(error))
        else:
            self._post(self._end, request_id)

    def _stop(self, request_id: int) -> None:
        try:
            self._model.infer(stop_arrays(), self._name(request_id))
        except Exception as error:  # The thread goes on, to stop others.
            log.warning("request %d could not be stopped: %s", request_id, error)

    def _name(self, request_id: int) -> str:
        """Returns a request id that is unique in the server, which other coordinators may share."""
        return f"{self._prefix}-{request_id}"

    def _post(self, work: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # The loop is closed, so nobody is left to hear it.
            assert self._loop is not None
            self._loop.call_soon_threadsafe(work, *arguments)

    # On the loop again.

    def _take(self, said: Response) -> None:
        self._num_answers += 1
        call = self._calls.get(said.request_id)
        if call is None:
            return
        if self._logits and call.draft_logits is not None:
            self._logits.take_back(call.draft_logits, call.valid.draft_token_ids)
        if not call.request.streaming or call.valid.draft_token_ids:
            self._finish(call, said)
            return
        for position, token in enumerate(said.token_ids):
            its_own = None if said.log_probs is None else [said.log_probs[position]]
            part = Response(
                said.request_id, [token], is_final=False, log_probs=its_own, num_reused=said.num_reused
            )
            if call.num_tokens + 1 == call.valid.max_tokens:
                self._finish(call, part)
                return
            call.num_tokens += 1
            call.listener(part)
            if said.request_id not in self._calls:  # The listener has cancelled it.
                return

    def _end(self, request_id: int) -> None:
        call = self._calls.get(request_id)
        if call is not None:
            log_probs: list[LogProb] | None = [] if call.request.return_log_probs else None
            said = Response(request_id, [], False, log_probs=log_probs, num_reused=call.num_reused)
            self._finish(call, said)

    def _drop(self, request_id: int) -> None:
        """Reports a request as cancelled, since the model ended it without an answer."""
        call = self._calls.pop(request_id, None)
        if call is not None:
            call.listener(_cancelled(request_id))

    def _fail(self, request_id: int, error: str) -> None:
        self._num_answers += 1
        call = self._calls.pop(request_id, None)
        if call is not None:
            call.listener(Response(request_id, [], is_final=True, error=error))

    def _finish(self, call: BlsCall, said: Response) -> None:
        del self._calls[said.request_id]
        reason = finish_reason(call.valid, call.num_tokens + len(said.token_ids))
        call.listener(replace(said, is_final=True, finish_reason=reason))


def pieces(call: BlsCall) -> Iterator[int]:
    """Yields how many tokens to ask for, request by request.

    A stream begins with one token, and the next pieces double, since each piece costs a hop and a step over
    the end of the text. A request that may not be split (`unsplittable_options`) is one piece.
    """
    left, size = call.valid.max_tokens, 1
    if not call.request.streaming or call.valid.draft_token_ids or call.is_whole:
        size = left
    while left:
        yield min(size, left)
        left, size = left - min(size, left), min(2 * size, _LONGEST_PIECE)


def finish_reason(valid: Valid, num_tokens: int) -> FinishReason:
    """Returns the reason why a request ended after `num_tokens` tokens in all.

    Ordinary decoding that did not reach its length has met the end token, which is never in the output. Of a
    verification that says anything, its `num_verified` tells (rule 5 of the contract).
    """
    if num_tokens < (1 if valid.draft_token_ids else valid.max_tokens):
        return FinishReason.END_ID
    return FinishReason.LENGTH


def _continued(call: BlsCall, text: Text, max_tokens: int) -> tuple[Request, Valid]:
    """Returns the request for the tokens after `text`."""
    sampling = at_token(call.request.sampling, len(text) - call.valid.prompt_len)
    valid = replace(call.valid, text=text, prompt_len=len(text), max_tokens=max_tokens)
    return replace(call.request, sampling=sampling), valid


def _cancelled(request_id: int) -> Response:
    return Response(request_id, [], is_final=True, finish_reason=FinishReason.CANCELLED)
