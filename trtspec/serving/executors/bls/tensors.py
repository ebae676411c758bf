"""The tensors of a request to a `tensorrt_llm` model and of its response: one sequence, one beam.

Names and shapes are those of NVIDIA's `all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt`, each with
the batch dimension that clients send.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, chain
from typing import Any

import numpy as np
import numpy.typing as npt

from trtspec.serving.executor import LEAST_LOG_PROB, LogProb, Request, SamplingConfig
from trtspec.serving.executors.draft_logits import Rows
from trtspec.serving.executors.validation import Valid

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
