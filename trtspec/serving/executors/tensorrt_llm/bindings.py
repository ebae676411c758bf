"""The use of `tensorrt_llm.bindings.executor`, which only NVIDIA's images have.

Every release from 1.0 to 1.2 has the arguments used here (`cpp/tensorrt_llm/nanobind/executor/request.cpp`).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executor import FinishReason, Limits, Request, Response, SamplingConfig
from trtspec.serving.executors.draft_logits import Rows
from trtspec.serving.executors.tensorrt_llm.guided import to_params
from trtspec.serving.executors.validation import Valid

_LOG_PREFIX = "[TensorRT-LLM][ERROR] "
# `TllmException` adds the line of its source, and a stack trace below it (common/tllmException.cpp).
_SOURCE = re.compile(r" \([^()]*:\d+\)$")


def load_bindings(image: str) -> Any:
    """Returns the module, whose `__version__` is the release; `EngineLoadError` names an `image` with it."""
    try:
        return import_module("tensorrt_llm.bindings.executor")
    except Exception as error:  # A missing library or driver raises more than ImportError.
        problem = f"cannot be imported here ({one_line(error)}); serve with {image}"
        raise EngineLoadError("tensorrt_llm", problem) from error


def free_memory(device_id: int) -> int:
    """Returns the free bytes of the GPU with CUDA's number `device_id`; raises `EngineLoadError`."""
    import torch

    try:
        free, _ = torch.cuda.mem_get_info(device_id)
    except (RuntimeError, AssertionError, ValueError) as error:
        problem = f"cannot be asked how much memory is free ({one_line(error)})"
        raise EngineLoadError(f"GPU {device_id}", problem) from error
    return free


def one_line(error: object) -> str:
    """Returns the message of an exception or an `error_msg`, without source line and stack trace."""
    lines = str(error).strip().splitlines()
    first = _SOURCE.sub("", lines[0]) if lines else ""
    return first.replace(_LOG_PREFIX, "") or f"TensorRT-LLM raised {type(error).__name__}"


class ResponseThread:
    """Waits for an engine's responses on a thread, since `await_responses` blocks without the GIL.

    `deliver` gets all responses of an iteration as one list. `fail` gets one line of an error after which
    there will be no more responses. Both are called on the thread.
    """

    def __init__(
        self, engine: Any, deliver: Callable[[list[Any]], None], fail: Callable[[str], None]
    ) -> None:
        self._engine, self._deliver, self._fail = engine, deliver, fail
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="trtllm-responses", daemon=True)
        self._thread.start()

    def shutdown(self) -> None:
        """Shuts the engine down, which wakes the thread, and waits for the end of the thread."""
        self._is_closing = True
        self._engine.shutdown()
        self._thread.join()
        self._engine = None

    def _run(self) -> None:
        while not self._is_closing:
            try:
                responses = self._engine.await_responses()
            except Exception as error:  # After any error there are no more responses.
                if not self._is_closing:
                    self._fail(one_line(error))
                return
            if responses:
                self._deliver(responses)


# Requests here have no stop words or time limits, but an engine may still end a request by one.
_REASONS = {
    "NOT_FINISHED": FinishReason.NOT_FINISHED,
    "END_ID": FinishReason.END_ID,
    "STOP_WORDS": FinishReason.END_ID,
    "LENGTH": FinishReason.LENGTH,
    "TIMED_OUT": FinishReason.CANCELLED,
    "CANCELLED": FinishReason.CANCELLED,
}


def to_bindings(
    trtllm: Any, request: Request, valid: Valid, vocab_size: int, draft_logits: Rows | None = None
) -> Any:
    """Returns a `tensorrt_llm.bindings.executor.Request`. A verification is one step and does not stream.

    The `draft_logits` `[draft, vocab_size]` are not copied: the engine reads them before it responds.
    """
    return trtllm.Request(
        input_token_ids=valid.text,
        max_tokens=valid.max_tokens,
        streaming=request.streaming and not valid.draft_token_ids,
        sampling_config=_sampling(trtllm, request.sampling),
        output_config=trtllm.OutputConfig(exclude_input_from_output=True, return_perf_metrics=True),
        end_id=request.end_id,
        bad_words=[list(word) for word in request.bad_words] or None,
        embedding_bias=_dense(request.embedding_bias, vocab_size) if request.embedding_bias else None,
        external_draft_tokens_config=_draft(trtllm, valid.draft_token_ids, draft_logits)
        if valid.draft_token_ids
        else None,
        guided_decoding_params=None if request.guide is None else to_params(trtllm, request.guide),
    )


def from_bindings(response: Any, limits: Limits, has_draft: bool) -> Response:
    """Returns a response of the bindings, with one beam, as one of `trtspec.serving.executor`."""
    if response.has_error():
        return Response(response.request_id, [], is_final=True, error=one_line(response.error_msg))
    result = response.result
    tokens, reason = list(result.output_token_ids[0]), _REASONS[result.finish_reasons[0].name]
    metrics = result.request_perf_metrics
    verified = reused = None
    if metrics is not None:
        verified = metrics.speculative_decoding.total_draft_tokens if has_draft else None
        reused = limits.reused_tokens(metrics.kv_cache_metrics.num_reused_blocks)
    request_id, is_final = response.request_id, result.is_final
    return Response(request_id, tokens, is_final, reason, num_verified=verified, num_reused=reused)


def _draft(trtllm: Any, tokens: list[int], logits: Rows | None) -> Any:
    if logits is None:
        return trtllm.ExternalDraftTokensConfig(tokens=tokens)
    import torch

    return trtllm.ExternalDraftTokensConfig(tokens=tokens, logits=torch.from_numpy(logits))


def _dense(embedding_bias: Mapping[int, float], vocab_size: int) -> Any:
    """Returns the bias as a float32 tensor `[vocab_size]`.

    TensorRT-LLM adds it to every row of logits, in verifications too: the decoder runs its `PenaltyLayer`
    once for each draft token, and also `BanWordsLayer` (`layers/externalDraftTokensLayer.cpp`).
    """
    import torch  # It comes with the bindings. Without a bias its import is saved.

    dense = torch.zeros(vocab_size)
    dense[list(embedding_bias)] = torch.tensor(list(embedding_bias.values()))
    return dense


def _sampling(trtllm: Any, sampling: SamplingConfig) -> Any:
    """Returns the bindings' `SamplingConfig`.

    Without `top_k` and `top_p` TensorRT-LLM takes the likeliest token at any temperature
    (`regularizeTopKTopP` of layers/layerUtils.h), so sampling from all tokens needs `top_p` 1.
    """
    if sampling.is_greedy:
        choice: dict[str, Any] = {"top_k": 1}
    else:
        choice = {
            "top_k": sampling.top_k,
            "top_p": sampling.top_p if sampling.top_p is not None or sampling.top_k else 1.0,
            "min_p": sampling.min_p or None,
            "temperature": sampling.temperature,
            "seed": None if sampling.seed is None else sampling.seed % 2**64,
        }
    return trtllm.SamplingConfig(
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        min_tokens=sampling.min_tokens,
        **choice,
    )
