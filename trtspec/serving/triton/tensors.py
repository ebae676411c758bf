"""The tensors of `speculative_llm`, named as in NVIDIA's `tensorrt_llm_bls` and Triton's OpenAI front end.

`config.pbtxt` is generated from these tables, and requests are read and responses written by them.
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
class Input:
    """An input tensor of shape [1, 1], or [1, n] for a list.

    Some clients always send inputs that are not implemented here. Such an input has `only`: it is accepted
    with these values, which ask for nothing, and refused with any other.
    """

    name: str
    datatype: Datatype
    is_list: bool = False
    is_required: bool = False
    only: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Output:
    """An output tensor of shape [1, 1]."""

    name: str
    datatype: Datatype


INPUTS = (
    Input("text_input", Datatype.STRING, is_required=True),
    Input("max_tokens", Datatype.INT32),
    Input("num_draft_tokens", Datatype.INT32),
    Input("stream", Datatype.BOOL),
    Input("stop_words", Datatype.STRING, is_list=True),
    Input("exclude_input_in_output", Datatype.BOOL),
    Input("end_id", Datatype.INT32),
    Input("add_special_tokens", Datatype.BOOL),
    Input("top_k", Datatype.INT32),
    Input("top_p", Datatype.FP32),
    Input("temperature", Datatype.FP32),
    Input("repetition_penalty", Datatype.FP32),
    Input("presence_penalty", Datatype.FP32),
    Input("frequency_penalty", Datatype.FP32),
    Input("min_tokens", Datatype.INT32),
    Input("seed", Datatype.UINT64),
    Input("return_perf_metrics", Datatype.BOOL),
    Input("return_num_input_tokens", Datatype.BOOL),
    Input("return_num_output_tokens", Datatype.BOOL),
    # Without an effect here: nothing is padded, and there are no beams whose length could be penalized.
    Input("pad_id", Datatype.INT32),
    Input("length_penalty", Datatype.FP32),
    # Not implemented.
    Input("bad_words", Datatype.STRING, is_list=True, only=("",)),
    Input("beam_width", Datatype.INT32, only=(1,)),
    Input("num_return_sequences", Datatype.INT32, only=(1,)),
    Input("use_draft_logits", Datatype.BOOL, only=(False,)),
    Input("return_log_probs", Datatype.BOOL, only=(False,)),
    Input("return_context_logits", Datatype.BOOL, only=(False,)),
    Input("return_generation_logits", Datatype.BOOL, only=(False,)),
    Input("guided_decoding_guide", Datatype.STRING, only=("",)),
    Input("guided_decoding_guide_type", Datatype.STRING, only=("",)),
)

OUTPUTS = (
    Output("text_output", Datatype.STRING),
    Output("finish_reason", Datatype.STRING),
    Output("num_input_tokens", Datatype.INT32),
    Output("num_output_tokens", Datatype.INT32),
    Output("acceptance_rate", Datatype.FP32),
    Output("total_accepted_draft_tokens", Datatype.INT32),
    Output("total_draft_tokens", Datatype.INT32),
)
