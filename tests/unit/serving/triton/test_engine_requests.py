"""Tensors of a `tensorrt_llm` model as requests, and tokens as its tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from trtspec.serving.errors import RequestError
from trtspec.serving.executor import Guide, GuideType, Request, SamplingConfig
from trtspec.serving.executors.bls_executor import request_arrays
from trtspec.serving.executors.validation import Valid
from trtspec.serving.text import Text
from trtspec.serving.triton.engine_requests import (
    EngineRequest,
    is_stop,
    read_engine_request,
    response_arrays,
)


def tensors(**values: npt.ArrayLike) -> dict[str, npt.NDArray[Any]]:
    """As Triton hands them to the model: lists have the batch's dimension, numbers nothing else."""
    return {
        "input_ids": np.array([[3, 1, 4]], np.int32),
        "input_lengths": np.array([3], np.int32),
        "request_output_len": np.array([8], np.int32),
        **{name: np.array(value) for name, value in values.items()},
    }


def read(**values: npt.ArrayLike) -> EngineRequest:
    return read_engine_request(tensors(**values), excludes_input=False)


@pytest.mark.parametrize(
    "request_",
    [
        Request([3, 1, 4], 8),
        Request([3, 1, 4], 3, draft_token_ids=[5, 6], end_id=2),
        Request([3], 1, sampling=SamplingConfig(top_k=1, min_tokens=4)),
        Request([3], 1, sampling=SamplingConfig(temperature=0.5, top_p=1.0, seed=2**64 - 1)),
        Request([3], 1, sampling=SamplingConfig(0.5, 20, 0.5, 7, 1.5, 0.25, -0.25, 3)),
        Request([3], 1, bad_words=[[5], [6, 7, 8], [9, 10]]),
        Request([3], 1, embedding_bias={0: 0.5, 95: -1e6}),
        Request([3], 1, return_log_probs=True),
        Request([3], 1, guide=Guide(GuideType.JSON)),
        Request([3], 1, guide=Guide(GuideType.REGEX, "é+")),
    ],
)
def test_an_engine_model_reads_every_request_as_the_coordinator_wrote_it(request_: Request) -> None:
    prompt = request_.input_token_ids
    valid = Valid(Text(prompt), len(prompt), [*request_.draft_token_ids], request_.max_tokens)

    asked = read_engine_request(request_arrays(request_, valid, 96), excludes_input=False)

    expected = request_.sampling if not request_.sampling.is_greedy else None
    assert asked.request.input_token_ids == prompt
    assert asked.request.draft_token_ids == valid.draft_token_ids
    assert asked.request.max_tokens == request_.max_tokens
    assert asked.request.end_id == request_.end_id
    assert asked.request.sampling.is_greedy == request_.sampling.is_greedy
    assert expected in (None, asked.request.sampling)
    assert asked.request.sampling.min_tokens == request_.sampling.min_tokens
    assert asked.request.bad_words == list(request_.bad_words)
    assert asked.request.embedding_bias == request_.embedding_bias
    assert asked.request.return_log_probs == request_.return_log_probs
    assert asked.request.guide == request_.guide
    assert asked.excludes_input


def test_temperature_alone_is_greedy_as_in_tensorrt_llm() -> None:
    assert read(temperature=[0.7]).request.sampling.is_greedy
    assert not read(temperature=[0.7], runtime_top_p=[1.0]).request.sampling.is_greedy
    assert read(runtime_top_k=[0], runtime_top_p=[0.0]).request.sampling.is_greedy


def test_empty_defaults_that_nvidias_coordinator_sends_change_no_request() -> None:
    asked = read(
        bad_words_list=np.array([[[0], [-1]]], np.int32),  # of [""], the usual curl line's
        stop_words_list=np.zeros([1, 2, 0], np.int32),
        embedding_bias=np.zeros([1, 0], np.float32),
        return_context_logits=[False],
        return_generation_logits=[False],
        beam_width=[1],
        pad_id=[2],
        len_penalty=[1.0],
        decoder_input_ids=[[0]],
    )

    assert asked.request == Request(
        [3, 1, 4], 8, draft_token_ids=[], bad_words=[], sampling=SamplingConfig(top_k=1)
    )
    assert not asked.excludes_input


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("beam_width", [2]),
        ("num_return_sequences", [2]),
        ("return_generation_logits", [True]),
        ("draft_logits", [[[0.5, 1.0]]]),
        ("lora_task_id", [3]),
        ("guided_decoding_guide", [[b"{}"]]),
        ("guided_decoding_guide_type", [[b"xml"]]),
        ("guided_decoding_guide_type", [[b"\xff"]]),
    ],
)
def test_tensors_that_ask_an_engine_model_for_the_unsupported_are_refused(
    name: str, value: npt.ArrayLike
) -> None:
    with pytest.raises(RequestError, match=name):
        read(**{name: value})


def test_several_sequences_and_none_are_refused() -> None:
    with pytest.raises(RequestError, match="2 sequences"):
        read(input_ids=[[1], [2]])
    with pytest.raises(RequestError, match="input_ids is missing"):
        read_engine_request({}, excludes_input=False)


def test_padding_behind_the_prompt_is_no_prompt() -> None:
    assert read(input_ids=[[3, 1, 4, 0, 0]]).request.input_token_ids == [3, 1, 4]


def test_the_prompt_comes_first_unless_it_is_unwanted_or_streamed() -> None:
    shown, hidden = read(), read(exclude_input_in_output=[True])
    streamed = read(streaming=[True])

    assert response_arrays(shown, [5, 6])["output_ids"].tolist() == [[[3, 1, 4, 5, 6]]]
    assert response_arrays(shown, [5, 6])["sequence_length"].tolist() == [[5]]
    assert response_arrays(hidden, [5, 6])["output_ids"].tolist() == [[[5, 6]]]
    assert response_arrays(streamed, [5])["output_ids"].tolist() == [[[5]]]
    assert response_arrays(hidden, [])["output_ids"].shape == (1, 1, 0)


def test_numbers_come_when_asked_for() -> None:
    asked = read(
        draft_input_ids=[[5, 6, 7]],
        return_perf_metrics=[True],
        return_num_input_tokens=[True],
        return_num_output_tokens=[True],
        exclude_input_in_output=[True],
    )
    arrays = response_arrays(asked, [5, 6, 9], num_reused_blocks=2)

    assert {name: array.tolist() for name, array in arrays.items() if name != "output_ids"} == {
        "sequence_length": [[3]],
        "num_input_tokens": [[3]],
        "num_output_tokens": [[3]],
        "total_draft_tokens": [[3]],
        "total_accepted_draft_tokens": [[2]],
        "acceptance_rate": [[np.float32(2 / 3)]],
        "kv_cache_reused_blocks": [[2]],
    }


def test_log_probabilities_are_returned_in_the_shape_of_one_beam() -> None:
    asked = read(return_log_probs=[True])
    arrays = response_arrays(asked, [5, 6], [-0.5, -0.25])

    assert arrays["output_log_probs"].tolist() == [[[-0.5, -0.25]]]
    assert arrays["cum_log_probs"].tolist() == [[-0.75]]
    assert {arrays[name].dtype for name in ("output_log_probs", "cum_log_probs")} == {np.dtype("float32")}
    assert response_arrays(asked, [])["output_log_probs"].shape == (1, 1, 0)
    assert not {"output_log_probs", "cum_log_probs"} & response_arrays(read(), [5]).keys()


def test_a_stop_is_told_from_a_request() -> None:
    assert is_stop(tensors(stop=[True]))
    assert not is_stop(tensors(stop=[False]))
    assert not is_stop(tensors())
