"""The tensors of an engine as its own Triton model, `tensorrt_llm`, as NVIDIA's C++ backend has them.

They are those of `triton_backend/all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt` of TensorRT-LLM
1.0 to 1.2, without those for encoders, images and disaggregated serving. `config.pbtxt` is generated from
these tables for any backend of the engine. A batch dimension comes before `dims`.
"""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.serving.triton.tensors import Datatype, OutputTensor

_INT32, _FP32, _BOOL = Datatype.INT32, Datatype.FP32, Datatype.BOOL


@dataclass(frozen=True, slots=True)
class EngineInput:
    """An input tensor of an engine's model."""

    name: str
    datatype: Datatype
    dims: tuple[int, ...] | None = None
    """None for one number in each request, of shape [batch] in the model."""
    is_ragged: bool = False
    """True if a batch may have tensors of different lengths."""
    is_required: bool = False


def _scalars(datatype: Datatype, names: str) -> list[EngineInput]:
    return [EngineInput(name, datatype) for name in names.split()]


def _ragged(datatype: Datatype, dims: tuple[int, ...], names: str) -> list[EngineInput]:
    return [EngineInput(name, datatype, dims, is_ragged=True) for name in names.split()]


INPUTS = (
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

OUTPUTS = (
    OutputTensor("output_ids", _INT32, (-1, -1)),
    OutputTensor("sequence_length", _INT32, (-1,)),
    OutputTensor("cum_log_probs", _FP32, (-1,)),
    OutputTensor("output_log_probs", _FP32, (-1, -1)),
    OutputTensor("context_logits", _FP32, (-1, -1)),
    OutputTensor("generation_logits", _FP32, (-1, -1, -1)),
    OutputTensor("batch_index", _INT32),
    OutputTensor("sequence_index", _INT32),
    OutputTensor("kv_cache_alloc_new_blocks", _INT32),
    OutputTensor("kv_cache_reused_blocks", _INT32),
    OutputTensor("kv_cache_alloc_total_blocks", _INT32),
    OutputTensor("arrival_time_ns", Datatype.INT64),
    OutputTensor("first_scheduled_time_ns", Datatype.INT64),
    OutputTensor("first_token_time_ns", Datatype.INT64),
    OutputTensor("last_token_time_ns", Datatype.INT64),
    OutputTensor("acceptance_rate", _FP32),
    OutputTensor("total_accepted_draft_tokens", _INT32),
    OutputTensor("total_draft_tokens", _INT32),
    OutputTensor("num_input_tokens", _INT32),
    OutputTensor("num_output_tokens", _INT32),
)
