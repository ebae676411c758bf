"""Tensors to plain Python, and everything that a client can get wrong about them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from trtspec.serving.completion import CompletionRequest
from trtspec.serving.errors import RequestError, ServingError
from trtspec.serving.executor import Guide, GuideType, SamplingConfig
from trtspec.serving.triton.requests import ResponseOptions, explain, read
from trtspec.serving.triton.tensors import INPUTS, Datatype

DTYPES = {
    Datatype.STRING: np.object_,
    Datatype.BOOL: np.bool_,
    Datatype.INT32: np.int32,
    Datatype.UINT64: np.uint64,
    Datatype.FP32: np.float32,
}
BY_NAME = {tensor.name: tensor for tensor in INPUTS}


def tensors(**values: object) -> dict[str, npt.NDArray[Any]]:
    """As Triton would hand them over."""
    return {
        name: np.array([value if isinstance(value, list) else [value]], dtype=DTYPES[BY_NAME[name].datatype])
        for name, value in values.items()
    }


def refusal(**values: object) -> str:
    with pytest.raises(RequestError) as caught:
        read(tensors(**values), {})
    return explain(caught.value)


def test_a_prompt_alone_has_defaults() -> None:
    assert read(tensors(text_input="é".encode()), {}) == (CompletionRequest("é"), ResponseOptions())


def test_the_triton_service_accepts_a_prompt_of_token_ids() -> None:
    completion, wanted = read(tensors(input_ids=[5, 70000, 0]), {})
    assert (completion, wanted) == (CompletionRequest(prompt_token_ids=[5, 70000, 0]), ResponseOptions())
    told = refusal(input_ids=[5], exclude_input_in_output=False)
    assert told == "exclude_input_in_output is false; it must be true or left out together with input_ids"
    assert explain(RequestError("prompt_token_ids", 9, "small")) == "input_ids is 9; it must be small"


def test_every_input_reaches_its_place() -> None:
    completion, wanted = read(
        tensors(
            text_input=b"a",
            max_tokens=7,
            num_draft_tokens=0,
            stream=True,
            stop_words=[b"x", "é".encode()],
            stop_token_ids=[5, 6],
            include_stop_str_in_output=True,
            skip_special_tokens=False,
            bad_words=[b"", b"z"],
            exclude_input_in_output=False,
            end_id=-1,
            top_k=3,
            top_p=0.5,
            temperature=0.25,
            repetition_penalty=1.5,
            presence_penalty=-1.0,
            frequency_penalty=2.0,
            min_tokens=4,
            min_p=0.125,
            embedding_bias_words=[b"x", b"y"],
            embedding_bias_ids=[70000],
            embedding_bias_weights=[0.5, -2.0, 1.0],
            seed=2**64 - 1,
            num_return_sequences=3,
            return_log_probs=True,
            top_log_probs=4,
            prompt_log_probs=2,
            return_perf_metrics=True,
            return_num_input_tokens=True,
            return_num_output_tokens=True,
            return_output_ids=True,
            add_special_tokens=False,
            pad_id=3,
            length_penalty=9.0,
        ),
        {},
    )

    sampling = SamplingConfig(0.25, 3, 0.5, 2**64 - 1, 1.5, -1.0, 2.0, 4, 0.125)
    bias = (("x", 0.5), ("y", -2.0), (70000, 1.0))
    expected = CompletionRequest(
        "a", None, 7, 0, ("x", "é"), sampling, -1, False, None, bias, ("z",), True, 4, 2, 3
    )
    ends: dict[str, Any] = {"stop_token_ids": (5, 6), "include_stop": True, "skip_special_tokens": False}
    assert completion == replace(expected, **ends)
    assert wanted == ResponseOptions(True, "a", True, True, True, True, True)


def test_values_are_plain_python() -> None:
    completion, wanted = read(
        tensors(text_input=b"a", max_tokens=7, temperature=0.5, seed=1, stream=True), {}
    )

    kinds = [type(value) for value in (completion.max_tokens, completion.sampling.temperature, wanted.stream)]
    assert kinds == [int, float, bool]


def test_the_triton_service_accepts_tensors_with_neutral_values() -> None:
    neutral = {tensor.name: tensor.only[0] for tensor in INPUTS if tensor.only}
    neutral = {name: value.encode() if isinstance(value, str) else value for name, value in neutral.items()}

    given = tensors(text_input=b"a", stop_words=[b""], bad_words=[b""], **neutral)
    assert read(given, {}) == (CompletionRequest("a"), ResponseOptions())


def test_the_triton_service_refuses_tensors_that_are_not_implemented() -> None:
    assert refusal(text_input=b"a", beam_width=4) == (
        "beam_width is 4; it must be 1, since anything else is not implemented"
    )
    assert refusal(text_input=b"a", return_context_logits=True).startswith(
        "return_context_logits is true; it must be false"
    )


@pytest.mark.parametrize("guide_type", list(GuideType))
def test_a_guide_has_nvidias_types(guide_type: GuideType) -> None:
    values = {"guided_decoding_guide_type": guide_type.value.encode(), "guided_decoding_guide": "é".encode()}
    assert read(tensors(text_input=b"a", **values), {})[0].guide == Guide(guide_type, "é")


def test_an_empty_guide_is_none_and_half_a_guide_is_refused() -> None:
    nothing = tensors(text_input=b"a", guided_decoding_guide_type=b"", guided_decoding_guide=b"")
    assert read(nothing, {})[0].guide is None
    json = read(tensors(text_input=b"a", guided_decoding_guide_type=b"json"), {})[0]
    assert json.guide == Guide(GuideType.JSON)
    assert refusal(text_input=b"a", guided_decoding_guide=b"a").startswith(
        "guided_decoding_guide is given without a type"
    )
    assert refusal(text_input=b"a", guided_decoding_guide_type=b"xml") == (
        'guided_decoding_guide_type is "xml"; it must be one of json, json_schema, regex, ebnf_grammar,'
        " structural_tag"
    )


def test_a_bias_is_one_number_for_each_word() -> None:
    assert refusal(text_input=b"a", embedding_bias_words=[b"x", b"y"], embedding_bias_weights=[1.0]) == (
        "embedding_bias_weights is 1 numbers; it must be one for each of the 2 embedding_bias_words and "
        "embedding_bias_ids"
    )


def test_a_missing_text_is_named() -> None:
    assert refusal(max_tokens=3) == "text_input is missing; it must be given, or input_ids instead"
    assert refusal(text_input=b"a", input_ids=[1]).startswith("text_input is given together with input_ids")


def test_bytes_that_are_not_utf8_are_placed() -> None:
    assert refusal(text_input=b"ab\xff") == "text_input is not UTF-8 at byte 2; it must be valid UTF-8"
    assert refusal(text_input=b"a", stop_words=[b"\x80"]).startswith("stop_words is not UTF-8 at byte 0")


def test_a_shape_that_is_not_a_scalar_is_named() -> None:
    with pytest.raises(RequestError) as caught:
        read({"text_input": np.empty((1, 0), dtype=np.object_)}, {})
    assert explain(caught.value) == "text_input is of shape [1, 0]; it must be of shape [1, 1]"


@pytest.mark.parametrize("where", ["tensor", "parameter"])
def test_an_unknown_name_has_its_nearest(where: str) -> None:
    given = tensors(text_input=b"a")
    sent = (
        ({**given, "max_token": given["text_input"]}, {}) if where == "tensor" else (given, {"max_token": 1})
    )
    with pytest.raises(ServingError) as caught:
        read(*sent)
    assert str(caught.value) == "max_token is not an input of this model; did you mean max_tokens?"


def test_a_name_without_end_is_shortened_before_it_is_compared() -> None:
    with pytest.raises(ServingError) as caught:
        read(tensors(text_input=b"a"), {"max_tokens" + "a" * 50_000_000: 1})
    assert str(caught.value).startswith("max_tokensaaa")
    assert len(str(caught.value)) < 200


def test_tritons_own_parameters_are_let_through() -> None:
    completion, _ = read(tensors(text_input=b"a"), {"triton_enable_empty_final_response": True})
    assert completion == CompletionRequest("a")


def test_an_input_sent_as_a_parameter_is_refused() -> None:
    with pytest.raises(RequestError) as caught:
        read(tensors(text_input=b"a"), {"max_tokens": 3})
    assert explain(caught.value) == "max_tokens is a parameter; it must be an input of type INT32"


@pytest.mark.parametrize(
    ("parameters", "timeout_us", "seconds"),
    [({}, 0, None), ({}, 1_500_000, 1.5), ({"timeout": 250_000}, 0, 0.25), ({"timeout": 0}, 0, None)],
)
def test_a_time_limit_is_tritons_timeout(
    parameters: dict[str, int], timeout_us: int, seconds: float | None
) -> None:
    assert read(tensors(text_input=b"a"), parameters, timeout_us)[0].timeout_s == seconds


@pytest.mark.parametrize("wrong", ["5 s", 1.5, True])
def test_a_time_limit_that_is_no_number_of_microseconds_is_refused(wrong: object) -> None:
    with pytest.raises(RequestError, match="whole number of microseconds"):
        read(tensors(text_input=b"a"), {"timeout": wrong})


def test_the_coordinators_names_become_the_clients() -> None:
    assert (
        explain(RequestError("stop", "65 strings", "at most 64"))
        == "stop_words is 65 strings; it must be at most 64"
    )
    assert len(explain(RequestError("prompt", "x" * 10_000, "short"))) < 140
