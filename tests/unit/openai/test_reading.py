"""Bodies of requests, and what is said of those that are wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase
from openai.types.completion_create_params import CompletionCreateParamsBase as TextParams

from trtspec.openai.errors import ApiError
from trtspec.openai.reading import read
from trtspec.openai.schema import ChatRequest, CompletionRequest

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
TEXT: dict[str, Any] = {"model": "m", "prompt": "a"}
# Of OpenAI's fields these ask for what the server has not; they are refused, not ignored.
NOT_HERE = {
    *("audio", "moderation", "web_search_options"),
}


def refused(body: dict[str, Any], kind: Any = ChatRequest) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(json.dumps(body).encode(), kind)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("changes", "param", "says"),
    [
        ({"max_token": 3}, "max_token", "did you mean max_tokens?"),
        ({"a" * 1_000_000: 3}, "a" * 200, "is not a field that this server knows"),
        ({"temperature": "hot"}, "temperature", "number"),
        ({"temperature": True}, "temperature", "number"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"messages": []}, "messages", "at least 1"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].type",
            "text",
        ),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role", "user"),
        ({"messages": [{"content": "a"}]}, "messages[0].role", "required"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "pattern"),
        ({"tool_choice": "auto"}, None, "there are no tools"),
        ({"function_call": "auto"}, None, "there are no functions"),
        ({"function_call": {"name": "f"}, "functions": [{"name": "g"}]}, None, "not among the functions"),
        ({"functions": [{"name": "f"}], "tool_choice": "none"}, None, "before tools"),
        ({"messages": [{"role": "function", "content": "7"}]}, "messages[0]", "function's name"),
        ({"reasoning_effort": "much"}, "reasoning_effort", "'low'"),
        ({"prediction": "a"}, "prediction", "Prediction"),
        ({"stream_options": {"include_usage": True}}, None, "stream_options goes with stream"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema goes with"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_object"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "100"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], param: str | None, says: str) -> None:
    error = refused({**CHAT, **changes})
    assert error.param == param
    assert says in error.message


@pytest.mark.parametrize("name", sorted(NOT_HERE))
def test_what_the_server_has_not_is_not_ignored(name: str) -> None:
    assert refused({**CHAT, name: {"a": 1}}).param == name


@pytest.mark.parametrize(
    ("params", "kind"), [(CompletionCreateParamsBase, ChatRequest), (TextParams, CompletionRequest)]
)
def test_every_other_field_of_the_official_client_is_known(params: Any, kind: Any) -> None:
    fields = set(params.__annotations__) - NOT_HERE
    assert fields - set(kind.model_fields) == set()
    assert len(fields) > 10


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ("", [""]),
    ],
)
def test_a_prompt_is_text_or_token_ids_or_several(given: Any, prompts: list[Any]) -> None:
    body = json.dumps({**TEXT, "prompt": given, "suffix": ""}).encode()
    assert read(body, CompletionRequest).prompt == prompts


@pytest.mark.parametrize(
    "given", [[], [[]], [1, "a"], [[1], [-1]], [2**31], [1.0], [True], None, {}, 5, [[1], []], ["a", None]]
)
def test_anything_else_is_no_prompt(given: Any) -> None:
    error = refused({**TEXT, "prompt": given}, CompletionRequest)
    assert error.param == "prompt"
    assert "must be a text, a list of token ids" in error.message


def test_nothing_is_filled_in_before_a_suffix() -> None:
    error = refused({**TEXT, "suffix": "return x"}, CompletionRequest)
    assert (error.param, error.message.partition(":")[0]) == ("suffix", "suffix")
    assert "leave it out" in error.message
    assert "128" in refused({**TEXT, "prompt": ["a"] * 129}, CompletionRequest).message


def test_numbers_may_be_whole() -> None:
    assert read(json.dumps({**TEXT, "temperature": 1}).encode(), CompletionRequest).temperature == 1.0
