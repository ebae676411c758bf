"""Requests of OpenAI's API in the model's own inputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from xgrammar.testing import _is_grammar_accept_string

from trtspec.gateway.openai.errors import ApiError
from trtspec.gateway.openai.model_request import (
    ModelRequest,
    chat,
    completion,
    template_messages,
    template_values,
)
from trtspec.gateway.openai.schema import ChatRequest, CompletionBody
from trtspec.serving.tokenizer import Tokenizer
from trtspec.serving.triton.tensors import INPUTS

TINY = Path(__file__).parents[4] / "recipes" / "tiny" / "target"
ALWAYS = {"stream": False, "return_num_input_tokens": True, "return_num_output_tokens": True}
ALWAYS |= {"return_perf_metrics": True}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(TINY)


def of_text(tokenizer: Tokenizer | None = None, **values: Any) -> ModelRequest:
    body = CompletionBody.model_validate({"model": "m", "prompt": "a", **values})
    return completion(body, "", tokenizer)


def of_chat(**values: Any) -> ModelRequest:
    body = ChatRequest.model_validate(
        {"model": "m", "messages": [{"role": "user", "content": "a"}], **values}
    )
    return chat(body, "prompt", "tools <tool_call>", "somebody", None)


def test_absent_fields_of_a_request_take_the_defaults_of_openai() -> None:
    (text,) = of_text().inputs
    assert text == {**ALWAYS, "text_input": "a", "temperature": 1.0, "max_tokens": 16}
    (said,) = of_chat().inputs
    own = {"text_input": "prompt", "add_special_tokens": False, "tenant": "somebody"}
    assert said == {**ALWAYS, **own, "temperature": 1.0, "max_tokens": 2**31 - 1}


def test_every_input_is_one_of_the_models(tokenizer: Tokenizer) -> None:
    everything = {
        "temperature": 0.5,
        "top_p": 0.5,
        "top_k": 3,
        "min_p": 0.1,
        "min_tokens": 2,
        "presence_penalty": 1,
        "frequency_penalty": 1,
        "repetition_penalty": 1.5,
        "seed": -1,
        "stop": "x",
        "bad_words": ["y"],
        "num_draft_tokens": 2,
        "ignore_eos": True,
        "n": 2,
        "logprobs": 5,
        "logit_bias": {"40": -100},
        "response_format": {"type": "json_object"},
    }
    (inputs,) = of_text(tokenizer, **everything).inputs

    known = {tensor.name for tensor in INPUTS}
    assert inputs.keys() <= known
    assert inputs["seed"] == 2**64 - 1
    assert inputs["stop_words"] == ["x"]
    assert inputs["end_id"] == -1
    assert inputs["num_return_sequences"] == 2
    assert inputs["embedding_bias_weights"] == [-100]
    assert inputs["embedding_bias_ids"] == [40]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"top_p": 0}, {"top_k": 1}),
        ({"top_p": 0, "top_k": 50}, {"top_k": 1}),
        ({"top_p": 1, "presence_penalty": 0, "top_k": -1, "repetition_penalty": 1.0}, {}),
        ({"stop": []}, {}),
        ({"stop": ["a", "b"]}, {"stop_words": ["a", "b"]}),
        ({"response_format": {"type": "text"}}, {}),
        ({"user": ""}, {}),
        ({"user": "ann", "safety_identifier": "a"}, {"user": "ann"}),
        ({"safety_identifier": "a"}, {"user": "a"}),
    ],
)
def test_neutral_values_of_a_request_are_not_passed_to_the_model(
    values: dict[str, Any], expected: dict[str, Any]
) -> None:
    (inputs,) = of_text(**values).inputs
    assert inputs == {**ALWAYS, "text_input": "a", "temperature": 1.0, "max_tokens": 16, **expected}


def test_prompts_of_token_ids_go_as_they_are() -> None:
    first, second = of_text(prompt=[[1, 2], [3]]).inputs
    assert (first["input_ids"], second["input_ids"]) == ([1, 2], [3])
    assert "text_input" not in first
    with pytest.raises(ApiError) as caught:
        of_text(prompt=[1], echo=True)
    assert caught.value.param == "echo"


def test_an_echo_with_logprobs_asks_for_those_of_the_prompt(tokenizer: Tokenizer) -> None:
    for prompt in ("a", [1, 2]):
        request = of_text(tokenizer, prompt=prompt, echo=True, logprobs=1)
        (inputs,) = request.inputs
        assert (inputs["prompt_log_probs"], inputs["return_log_probs"], request.echoes_scores) == (
            1,
            True,
            True,
        )
        assert "exclude_input_in_output" not in inputs
    request = of_text(tokenizer, prompt_logprobs=3)
    assert (request.inputs[0]["prompt_log_probs"], request.prompt_log_probs, request.echoes_scores) == (
        3,
        3,
        False,
    )
    for values, param in (
        ({"echo": True, "logprobs": 1, "n": 2}, "n"),
        ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
    ):
        with pytest.raises(ApiError) as caught:
            of_text(tokenizer, **values)
        assert caught.value.param == param


def test_a_schema_is_a_guide_with_its_keys_in_order() -> None:
    schema = {"type": "object", "properties": {"z": {}, "a": {}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    (inputs,) = of_chat(response_format=wanted).inputs

    assert inputs["guided_decoding_guide_type"] == "json_schema"
    assert json.loads(inputs["guided_decoding_guide"]) == schema
    assert list(json.loads(inputs["guided_decoding_guide"])["properties"]) == ["z", "a"]


@pytest.mark.parametrize("choice", ["\U0001f44d", "é", 'a "b"\n\\'])
def test_a_choice_is_read_by_xgrammar_as_it_was_sent(choice: str) -> None:
    for asked in ({"guided_choice": [choice]}, {"structured_outputs": {"choice": [choice]}}):
        (inputs,) = of_chat(**asked).inputs
        assert _is_grammar_accept_string(inputs["guided_decoding_guide"], choice)


def test_a_tool_that_must_be_called_is_a_guide() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    request = of_chat(tools=[tool], tool_choice={"type": "function", "function": {"name": "f"}})
    assert json.loads(request.inputs[0]["guided_decoding_guide"]) == {"type": "object"}
    request = of_chat(tools=[tool], tool_choice="required", parallel_tool_calls=False)
    assert json.loads(request.inputs[0]["guided_decoding_guide"])["maxItems"] == 1
    assert "guided_decoding_guide" not in of_chat(tools=[tool]).inputs[0]
    assert of_chat(tools=[tool]).parsing
    assert of_chat(tools=[tool], tool_choice="none").parsing is None


@pytest.mark.parametrize(("name", "number"), [("f", 1), ("Alice", 0)])
def test_calls_are_of_the_functions_of_a_request(name: str, number: int) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    asked = {"model": "m", "messages": [{"role": "user", "content": "a"}], "tools": tools}
    make = chat(ChatRequest.model_validate(asked), "prompt", "tools", "somebody", None).parsing
    assert make
    calls = make.parser()
    calls.push(json.dumps({"name": name}))
    assert len(calls.flush().calls) == number


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"logprobs": 0}, "logprobs"),
        ({"best_of": 3}, "best_of"),
    ],
)
def test_a_completion_with_log_probabilities_of_zero_or_best_of_is_refused(
    values: dict[str, Any], param: str
) -> None:
    with pytest.raises(ApiError) as caught:
        of_text(**values)
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize("token", ["-1", "a", "", "\u0661", "1.0", "1" * 50])
def test_a_logit_bias_for_an_invalid_token_id_is_refused(token: str) -> None:
    with pytest.raises(ApiError, match="logit_bias"):
        of_text(logit_bias={token: 1})


@pytest.mark.parametrize(
    ("asked", "template", "values"),
    [
        ({}, "", {}),
        (
            {"reasoning_effort": "low"},
            "{{ reasoning_effort }}",
            {"reasoning_effort": "low", "enable_thinking": True},
        ),
        (
            {"reasoning_effort": "none"},
            "{{ enable_thinking }}",
            {"reasoning_effort": "none", "enable_thinking": False},
        ),
        ({"reasoning_effort": "none"}, "", {"reasoning_effort": "none", "enable_thinking": False}),
        ({"verbosity": "low"}, "{{ verbosity }}", {"verbosity": "low"}),
        ({"verbosity": "medium"}, "", {"verbosity": "medium"}),
        (
            {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False, "a": 1}},
            "{{ enable_thinking }}",
            {"reasoning_effort": "high", "enable_thinking": False, "a": 1},
        ),
    ],
)
def test_a_template_gets_what_openai_has_fields_for(
    asked: dict[str, Any], template: str, values: dict[str, Any]
) -> None:
    body = ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "a"}], **asked})
    assert template_values(body, template) == values


@pytest.mark.parametrize("asked", [{"reasoning_effort": "low"}, {"verbosity": "high"}])
def test_a_chat_field_that_the_template_ignores_is_refused(asked: dict[str, Any]) -> None:
    body = ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "a"}], **asked})
    with pytest.raises(ApiError) as caught:
        template_values(body, "{{ messages }}")
    assert caught.value.param == next(iter(asked))


def test_messages_are_as_templates_read_them() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    said = [
        {"role": "developer", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "content": "7", "tool_call_id": "c"},
    ]
    read = ChatRequest.model_validate({"model": "m", "messages": said})

    assert template_messages(read) == [
        {"role": "system", "content": parts},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "7", "tool_call_id": "c"},
    ]
    call["function"] = {"name": "f", "arguments": "{"}
    with pytest.raises(ApiError, match="must be JSON"):
        template_messages(ChatRequest.model_validate({"model": "m", "messages": said}))
