"""The tensors of `speculative_llm`, named as in NVIDIA's `tensorrt_llm_bls` and Triton's OpenAI front end.

`config.pbtxt`, the reading of requests and the writing of responses follow these tables.
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
