"""The requests and responses of a `tensorrt_llm` model, between tensors and an executor's types.

The tensors have the meanings of NVIDIA's C++ backend (`inflight_batcher_llm/src/utils.cc`,
`model_instance_state.cc`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trtspec.serving.errors import RequestError
from trtspec.serving.executor import Request, SamplingConfig
from trtspec.serving.text import common_prefix
from trtspec.serving.triton.requests import read_guide


def read_words(array: npt.NDArray[Any] | None, name: str) -> list[list[int]]:
    """Returns the words of the tensor `name`, int32 [1, 2, length]; raises `RequestError`.

    The first row has the tokens of all words, the second the offset of each word's end, padded with -1
    (`convertWordList` of `inflight_batcher_llm/src/utils.cc`).
    """
    if array is None:
        return []
    tokens, ends = array.reshape(2, -1).tolist()
    words: list[list[int]] = []
    start = 0
    for end in ends[: ends.index(-1)] if -1 in ends else ends:
        if not start < end <= len(tokens):
            raise RequestError(name, f"a list with offsets {ends}", "one with rising offsets")
        words.append(tokens[start:end])
        start = end
    return words


class StopWords:
    """Finds the first stop word in generated tokens. It stays in the output, as with NVIDIA's engines."""

    def __init__(self, words: Sequence[Sequence[int]]) -> None:
        self._words = [list(word) for word in words]
        self._tokens: list[int] = []
        self.found = False

    def take(self, new: Sequence[int]) -> list[int]:
        """Returns the new tokens up to the first that completes a word, which sets `found`."""
        taken = []
        for token in new:
            if self.found:
                break
            taken.append(token)
            self._tokens.append(token)
            self.found = any(self._tokens[-len(word) :] == word for word in self._words)
        return taken


Arrays = Mapping[str, npt.NDArray[Any]]

# The inputs without an implementation. Some clients always send some of them, with a value without an effect:
# an empty list, one beam, no logits.
_ONE = ("num_return_sequences", "beam_width")
_MISSING = (
    *(*_ONE, "draft_logits", "draft_acceptance_threshold"),
    *("return_context_logits", "return_generation_logits"),
    *("runtime_top_p_min", "runtime_top_p_decay", "runtime_top_p_reset_ids"),
    *("prompt_embedding_table", "prompt_table_extra_ids", "prompt_vocab_size"),
    *("lora_task_id", "lora_weights", "lora_config"),
    *("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size"),
)


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request to an engine's model, with its choice of outputs."""

    request: Request
    stop_words: Sequence[Sequence[int]]
    """Sequences of tokens. The output ends with the first of them that comes."""
    excludes_input: bool
    perf_metrics: bool
    num_input_tokens: bool
    num_output_tokens: bool


def read_engine_request(arrays: Arrays, excludes_input: bool) -> EngineRequest:
    """Returns the request in the tensors; raises `RequestError`.

    `excludes_input` is the default of `exclude_input_in_output`. The executor checks the engine's limits.
    """
    for name in arrays:
        if name in _MISSING and not _has_no_effect(name, arrays[name]):
            raise RequestError(name, "given", "nothing, since the torch backend does not have it")
    tokens = arrays.get("input_ids")
    if tokens is None:
        raise RequestError("input_ids", "missing", "given")
    if tokens.shape[0] != 1:
        raise RequestError("input_ids", f"of {tokens.shape[0]} sequences", "of one sequence a request")
    draft = arrays.get("draft_input_ids")
    request = Request(
        input_token_ids=tokens.reshape(-1)[: _scalar(arrays, "input_lengths")].tolist(),
        max_tokens=_scalar(arrays, "request_output_len"),
        draft_token_ids=[] if draft is None else draft.reshape(-1).tolist(),
        end_id=_scalar(arrays, "end_id"),
        bad_words=read_words(arrays.get("bad_words_list"), "bad_words_list"),
        sampling=_sampling(arrays),
        streaming=bool(_scalar(arrays, "streaming")),
        embedding_bias=_embedding_bias(arrays),
        return_log_probs=bool(_scalar(arrays, "return_log_probs")),
        guide=read_guide(_text(arrays, "guided_decoding_guide_type"), _text(arrays, "guided_decoding_guide")),
    )
    excluded = _scalar(arrays, "exclude_input_in_output")
    return EngineRequest(
        request,
        stop_words=read_words(arrays.get("stop_words_list"), "stop_words_list"),
        excludes_input=excludes_input if excluded is None else excluded,
        perf_metrics=bool(_scalar(arrays, "return_perf_metrics")),
        num_input_tokens=bool(_scalar(arrays, "return_num_input_tokens")),
        num_output_tokens=bool(_scalar(arrays, "return_num_output_tokens")),
    )


def is_stop(arrays: Arrays) -> bool:
    """Says whether the tensors only stop the request with the same id."""
    return bool(_scalar(arrays, "stop"))


def response_arrays(
    asked: EngineRequest,
    new: Sequence[int],
    log_probs: Sequence[float] = (),
    num_verified: int | None = None,
    num_reused_blocks: int | None = None,
) -> dict[str, npt.NDArray[Any]]:
    """Returns `output_ids` int32 [1, 1, length], `sequence_length` int32 [1, 1], and the requested outputs.

    The prompt comes before the `new` tokens, unless the request excludes it or streams. `log_probs` are those
    of all generated tokens, also in a stream, as `createResult` of `batch_manager/llmRequest.cpp` has them.
    `output_log_probs` is float32 [1, 1, tokens], and `cum_log_probs`, their sum, float32 [1, 1].
    `total_draft_tokens` is the `num_verified` of `Response`, and `kv_cache_reused_blocks` is
    `num_reused_blocks`.
    """
    request = asked.request
    shows_input = not asked.excludes_input and not request.streaming
    tokens = [*request.input_token_ids, *new] if shows_input else new
    arrays: dict[str, npt.NDArray[Any]] = {"output_ids": np.array([[tokens]], np.int32).reshape(1, 1, -1)}
    numbers: dict[str, Any] = {"sequence_length": len(tokens)}
    if asked.num_input_tokens:
        numbers["num_input_tokens"] = len(request.input_token_ids)
    if asked.num_output_tokens:
        numbers["num_output_tokens"] = len(tokens)
    if asked.perf_metrics:
        draft = list(request.draft_token_ids[:num_verified])
        drafted, accepted = len(draft), common_prefix(draft, list(new), min(len(draft), len(new)))
        numbers["total_draft_tokens"], numbers["total_accepted_draft_tokens"] = drafted, accepted
        numbers["acceptance_rate"] = accepted / drafted if drafted else 0.0
        if num_reused_blocks is not None:
            numbers["kv_cache_reused_blocks"] = num_reused_blocks
    if request.return_log_probs:
        arrays["output_log_probs"] = np.array([[log_probs]], np.float32).reshape(1, 1, -1)
        numbers["cum_log_probs"] = float(sum(log_probs))
    for name, number in numbers.items():
        arrays[name] = np.array([[number]], np.float32 if isinstance(number, float) else np.int32)
    return arrays


def _has_no_effect(name: str, array: npt.NDArray[Any]) -> bool:
    nothing = (1,) if name in _ONE else (0, b"")
    return all(item in nothing for item in array.reshape(-1).tolist())


def _embedding_bias(arrays: Arrays) -> dict[int, float]:
    """Returns the biases that are not 0, by token id. The tensor has the whole vocabulary, or is empty."""
    array = arrays.get("embedding_bias")
    if array is None:
        return {}
    bias = array.reshape(-1)
    return {token_id: bias[token_id].item() for token_id in np.flatnonzero(bias).tolist()}


def _text(arrays: Arrays, name: str) -> str:
    """Returns the element of a STRING tensor; empty without the tensor."""
    found = _scalar(arrays, name)
    try:
        return "" if found is None else bytes(found).decode()
    except UnicodeDecodeError:
        raise RequestError(name, "not UTF-8", "valid UTF-8") from None


def _scalar(arrays: Arrays, name: str) -> Any:
    array = arrays.get(name)
    return None if array is None else array.reshape(-1).tolist()[0]


def _sampling(arrays: Arrays) -> SamplingConfig:
    """Returns the options. Without top-k and top-p they are greedy at any temperature."""
    top_k, top_p = _scalar(arrays, "runtime_top_k") or None, _scalar(arrays, "runtime_top_p")
    if top_p is not None and top_p <= 0:
        top_p = None
    return SamplingConfig(
        temperature=_scalar(arrays, "temperature"),
        top_k=1 if top_k is None and top_p is None else top_k,
        top_p=top_p,
        seed=_scalar(arrays, "seed"),
        repetition_penalty=_scalar(arrays, "repetition_penalty"),
        presence_penalty=_scalar(arrays, "presence_penalty"),
        frequency_penalty=_scalar(arrays, "frequency_penalty"),
        min_tokens=_scalar(arrays, "min_tokens"),
    )
