"""The tensors of `speculative_llm` and of an engine as its own Triton model, `tensorrt_llm`.

Those of `speculative_llm` are named as in NVIDIA's `tensorrt_llm_bls` and Triton's OpenAI front end. Those of
an engine are as NVIDIA's C++ backend has them, in
`triton_backend/all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt` of TensorRT-LLM 1.0 to 1.2, without
those for encoders, images and disaggregated serving. `config.pbtxt` is generated from these tables, for any
backend of an engine. The reading of requests and the writing of responses follow them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Datatype(str, Enum):
    """Triton's datatypes, as in `config.pbtxt` without `TYPE_`."""

    STRING = "STRING"
    BOOL = "BOOL"
    INT32 = "INT32"
    INT64 = "INT64"
    UINT64 = "UINT64"
    FP16 = "FP16"
    FP32 = "FP32"


@dataclass(frozen=True, slots=True)
class InputTensor:
    """An input tensor of shape [1, 1], or [1, n] for a list."""

    name: str
    datatype: Datatype
    is_list: bool = False
    only: tuple[object, ...] = ()
    """The accepted values of an input that is not implemented, which have no effect; others are refused.

    Some clients always send such inputs. It is empty for all other inputs.
    """


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """An output tensor."""

    name: str
    datatype: Datatype
    dims: tuple[int, ...] = (1,)
    """The dimensions after that of the batch; the default makes the shape [1, 1]."""


INPUTS = (
    # One of these two is the prompt.
    InputTensor("text_input", Datatype.STRING),
    InputTensor("input_ids", Datatype.INT32, is_list=True),
    InputTensor("max_tokens", Datatype.INT32),
    InputTensor("num_draft_tokens", Datatype.INT32),
    InputTensor("stream", Datatype.BOOL),
    InputTensor("stop_words", Datatype.STRING, is_list=True),
    InputTensor("stop_token_ids", Datatype.INT32, is_list=True),
    InputTensor("include_stop_str_in_output", Datatype.BOOL),
    InputTensor("skip_special_tokens", Datatype.BOOL),
    InputTensor("bad_words", Datatype.STRING, is_list=True),
    InputTensor("exclude_input_in_output", Datatype.BOOL),
    InputTensor("end_id", Datatype.INT32),
    InputTensor("add_special_tokens", Datatype.BOOL),
    InputTensor("top_k", Datatype.INT32),
    InputTensor("top_p", Datatype.FP32),
    InputTensor("min_p", Datatype.FP32),
    InputTensor("temperature", Datatype.FP32),
    InputTensor("repetition_penalty", Datatype.FP32),
    InputTensor("presence_penalty", Datatype.FP32),
    InputTensor("frequency_penalty", Datatype.FP32),
    InputTensor("min_tokens", Datatype.INT32),
    InputTensor("embedding_bias_words", Datatype.STRING, is_list=True),
    InputTensor("embedding_bias_ids", Datatype.INT32, is_list=True),
    InputTensor("embedding_bias_weights", Datatype.FP32, is_list=True),
    InputTensor("seed", Datatype.UINT64),
    InputTensor("num_return_sequences", Datatype.INT32),
    InputTensor("return_output_ids", Datatype.BOOL),
    InputTensor("return_log_probs", Datatype.BOOL),
    InputTensor("top_log_probs", Datatype.INT32),
    InputTensor("prompt_log_probs", Datatype.INT32),
    InputTensor("guided_decoding_guide_type", Datatype.STRING),
    InputTensor("guided_decoding_guide", Datatype.STRING),
    InputTensor("tenant", Datatype.STRING),
    InputTensor("user", Datatype.STRING),
    InputTensor("return_perf_metrics", Datatype.BOOL),
    InputTensor("return_num_input_tokens", Datatype.BOOL),
    InputTensor("return_num_output_tokens", Datatype.BOOL),
    # Without an effect here: there is no padding, and there are no beams.
    InputTensor("pad_id", Datatype.INT32),
    InputTensor("length_penalty", Datatype.FP32),
    # Not implemented.
    InputTensor("beam_width", Datatype.INT32, only=(1,)),
    InputTensor("use_draft_logits", Datatype.BOOL, only=(False,)),
    InputTensor("return_context_logits", Datatype.BOOL, only=(False,)),
    InputTensor("return_generation_logits", Datatype.BOOL, only=(False,)),
)

OUTPUTS = (
    OutputTensor("text_output", Datatype.STRING),
    # The first dimension is the beams of NVIDIA's models, of which there is one. The second is the tokens.
    OutputTensor("output_log_probs", Datatype.FP32, (-1, -1)),
    # It comes with the log-probabilities, or if the request asks for it.
    OutputTensor("output_ids", Datatype.INT32, (-1, -1)),
    # A row for each token: the likeliest tokens at its position, and their log-probabilities.
    OutputTensor("output_top_ids", Datatype.INT32, (-1, -1)),
    OutputTensor("output_top_log_probs", Datatype.FP32, (-1, -1)),
    # Of the prompt: its tokens, the log-probability of each after the first, and rows of likeliest ones.
    OutputTensor("prompt_ids", Datatype.INT32, (-1, -1)),
    OutputTensor("prompt_token_log_probs", Datatype.FP32, (-1, -1)),
    OutputTensor("prompt_top_ids", Datatype.INT32, (-1, -1)),
    OutputTensor("prompt_top_log_probs", Datatype.FP32, (-1, -1)),
    OutputTensor("sequence_index", Datatype.INT32),
    OutputTensor("finish_reason", Datatype.STRING),
    OutputTensor("speculation", Datatype.STRING),
    OutputTensor("num_input_tokens", Datatype.INT32),
    OutputTensor("num_output_tokens", Datatype.INT32),
    OutputTensor("num_cached_tokens", Datatype.INT32),
    OutputTensor("acceptance_rate", Datatype.FP32),
    OutputTensor("total_accepted_draft_tokens", Datatype.INT32),
    OutputTensor("total_draft_tokens", Datatype.INT32),
    OutputTensor("num_spec_steps", Datatype.INT32),
    # Element j counts the verifications that accepted exactly j tokens, from 0 to K.
    OutputTensor("acceptance_histogram", Datatype.INT32, (-1,)),
)


_INT32, _FP32, _BOOL = Datatype.INT32, Datatype.FP32, Datatype.BOOL


@dataclass(frozen=True, slots=True)
class EngineInput:
    """An input tensor of an engine's model."""

    name: str
    datatype: Datatype
    dims: tuple[int, ...] | None = None
    """The dimensions after that of the batch. None for one number in each request, of shape [batch]."""
    is_ragged: bool = False
    """True if a batch may have tensors of different lengths."""
    is_required: bool = False


def _scalars(datatype: Datatype, names: str) -> list[EngineInput]:
    return [EngineInput(name, datatype) for name in names.split()]


def _ragged(datatype: Datatype, dims: tuple[int, ...], names: str) -> list[EngineInput]:
    return [EngineInput(name, datatype, dims, is_ragged=True) for name in names.split()]


def _single(datatype: Datatype, names: str) -> list[OutputTensor]:
    return [OutputTensor(name, datatype) for name in names.split()]


ENGINE_INPUTS = (
    *_ragged(_INT32, (-1,), "input_ids"),
    EngineInput("input_lengths", _INT32, is_required=True),
    EngineInput("request_output_len", _INT32, is_required=True),
    *_scalars(_INT32, "num_return_sequences"),
    *_ragged(_INT32, (-1,), "draft_input_ids decoder_input_ids"),
    *_scalars(_INT32, "decoder_input_lengths"),
    *_ragged(_FP32, (-1, -1), "draft_logits"),
    *_scalars(_FP32, "draft_acceptance_threshold"),
    *_scalars(_INT32, "end_id pad_id"),
    *_ragged(_INT32, (2, -1), "stop_words_list bad_words_list"),
    *_ragged(_FP32, (-1,), "embedding_bias"),
    *_scalars(_INT32, "beam_width"),
    *_scalars(_FP32, "temperature"),
    *_scalars(_INT32, "runtime_top_k"),
    *_scalars(_FP32, "runtime_top_p runtime_top_p_min runtime_top_p_decay"),
    *_scalars(_INT32, "runtime_top_p_reset_ids"),
    *_scalars(_FP32, "len_penalty"),
    *_scalars(_BOOL, "early_stopping"),
    *_scalars(_FP32, "repetition_penalty"),
    *_scalars(_INT32, "min_tokens"),
    *_scalars(_FP32, "beam_search_diversity_rate presence_penalty frequency_penalty"),
    *_scalars(Datatype.UINT64, "seed"),
    *_scalars(_BOOL, "return_log_probs return_context_logits return_generation_logits return_perf_metrics"),
    *_scalars(_BOOL, "return_num_input_tokens return_num_output_tokens exclude_input_in_output"),
    *_scalars(_BOOL, "stop streaming"),
    *_ragged(Datatype.FP16, (-1, -1), "prompt_embedding_table"),
    *_ragged(Datatype.UINT64, (-1,), "prompt_table_extra_ids"),
    *_scalars(_INT32, "prompt_vocab_size"),
    *_scalars(Datatype.UINT64, "lora_task_id"),
    *_ragged(Datatype.FP16, (-1, -1), "lora_weights"),
    *_ragged(_INT32, (-1, 3), "lora_config"),
    *_ragged(_INT32, (-1,), "retention_token_range_starts retention_token_range_ends"),
    *_ragged(_INT32, (-1,), "retention_token_range_priorities retention_token_range_durations_ms"),
    *_ragged(_INT32, (1,), "retention_decode_priority retention_decode_duration_ms"),
    *_ragged(Datatype.STRING, (1,), "guided_decoding_guide_type guided_decoding_guide"),
    *_ragged(_INT32, (1,), "lookahead_window_size lookahead_ngram_size lookahead_verification_set_size"),
)

ENGINE_OUTPUTS = (
    OutputTensor("output_ids", _INT32, (-1, -1)),
    OutputTensor("sequence_length", _INT32, (-1,)),
    OutputTensor("cum_log_probs", _FP32, (-1,)),
    OutputTensor("output_log_probs", _FP32, (-1, -1)),
    OutputTensor("context_logits", _FP32, (-1, -1)),
    OutputTensor("generation_logits", _FP32, (-1, -1, -1)),
    *_single(_INT32, "batch_index sequence_index kv_cache_alloc_new_blocks kv_cache_reused_blocks"),
    *_single(_INT32, "kv_cache_alloc_total_blocks"),
    *_single(Datatype.INT64, "arrival_time_ns first_scheduled_time_ns"),
    *_single(Datatype.INT64, "first_token_time_ns last_token_time_ns"),
    *_single(_FP32, "acceptance_rate"),
    *_single(_INT32, "total_accepted_draft_tokens total_draft_tokens num_input_tokens num_output_tokens"),
)
