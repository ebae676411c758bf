"""Bodies of requests, and what is said of those that are wrong."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase
from openai.types.completion_create_params import CompletionCreateParamsBase as TextParams

from trtspec.gateway.openai.errors import ApiError
from trtspec.gateway.openai.schema import ChatRequest, CompletionBody, TokenizeBody, parse_body

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
TEXT: dict[str, Any] = {"model": "m", "prompt": "a"}
# Of OpenAI's fields these ask for what the server has not; they are refused, not ignored.
NOT_HERE = {
    *("audio", "moderation", "web_search_options"),
}


def refused(body: dict[str, Any], kind: Any = ChatRequest) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_body(json.dumps(body).encode(), kind)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("changes", "param", "says"),
    [
        ({"max_token": 3}, "max_token", "did you mean max_tokens?"),
        ({"a" * 1_000_000: 3}, "a" * 200, "is not a field that this server knows"),
        (
            {"stream": True, "stream_options": {"include_usages": True}},
            "stream_options.include_usages",
            "did you mean include_usage?",
        ),
        (
            {"messages": [{"role": "user", "contents": "a"}]},
            "messages[0].contents",
            "did you mean content?",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "texts": "a"}]}]},
            "messages[0].content[0].texts",
            "did you mean text?",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameter": {}}}]},
            "tools[0].function.parameter",
            "did you mean parameters?",
        ),
        ({"temperature": "hot"}, "temperature", "number"),
        ({"temperature": True}, "temperature", "number"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"messages": []}, "messages", "at least 1"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].type",
            "this server reads text alone, and no image_url",
        ),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role", "user"),
        ({"messages": [{"content": "a"}]}, "messages[0].role", "required"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "pattern"),
        ({"tool_choice": "auto"}, None, "there are no tools"),
        ({"function_call": "auto"}, None, "there are no functions"),
        ({"function_call": {"name": "f"}, "functions": [{"name": "g"}]}, None, "not among the functions"),
        ({"functions": [{"name": "f"}], "tool_choice": "none"}, None, "older form of tools"),
        ({"messages": [{"role": "function", "content": "7"}]}, "messages[0]", "function's name"),
        ({"reasoning_effort": "much"}, "reasoning_effort", "'low'"),
        ({"prediction": "a"}, "prediction", "Prediction"),
        ({"stream_options": {"include_usage": True}}, None, "stream_options needs stream"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema needs"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_object"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "100"),
    ],
)
def test_a_refused_openai_body_names_the_wrong_field_and_the_reason(
    changes: dict[str, Any], param: str | None, says: str
) -> None:
    error = refused({**CHAT, **changes})
    assert error.param == param
    assert says in error.message


@pytest.mark.parametrize(
    ("field", "most"), [("stop", 256), ("bad_words", 256), ("tools", 128), ("functions", 128)]
)
def test_lists_are_bounded(field: str, most: int) -> None:
    function = {"name": "f"}
    one: Any = {"tools": {"type": "function", "function": function}, "functions": function}.get(field, "a")
    parse_body(json.dumps({**CHAT, field: [one] * most}).encode(), ChatRequest)
    error = refused({**CHAT, field: [one] * (most + 1)})
    assert error.param == field
    assert f"at most {most} items" in error.message


@pytest.mark.parametrize(("field", "most", "value"), [("logit_bias", 1024, 1), ("metadata", 64, "a")])
def test_dictionaries_are_bounded(field: str, most: int, value: Any) -> None:
    values = {str(number): value for number in range(most)}
    parse_body(json.dumps({**CHAT, field: values}).encode(), ChatRequest)
    error = refused({**CHAT, field: {**values, "more": value}})
    assert (error.param, error.message) == (
        field,
        f"{field}: has {most + 1} keys, but at most {most} are allowed",
    )


MANY = 50_000
KEYS = {f"k{number}": None for number in range(MANY)}


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"stop": [1] * MANY}, "stop[0]"),
        ({"bad_words": [1] * MANY}, "bad_words[0]"),
        ({"modalities": [1] * MANY}, "modalities[0]"),
        ({"tools": [1] * MANY}, "tools[0]"),
        ({"messages": [1] * MANY}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [1] * MANY}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "tool_calls": [1] * MANY}]}, "messages[0].tool_calls[0]"),
        ({"messages": [{"role": "user", "content": "a", **KEYS}]}, "messages[0].k0"),
        ({"logit_bias": KEYS}, "logit_bias"),
        ({"metadata": KEYS}, "metadata"),
        (KEYS, "k0"),
    ],
)
def test_much_that_is_wrong_takes_little_memory(changes: dict[str, Any], param: str) -> None:
    body = json.dumps({**CHAT, **changes}).encode()
    tracemalloc.start()
    try:
        with pytest.raises(ApiError) as caught:
            parse_body(body, ChatRequest)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.param == param
    # An error of each of them takes 400 bytes and more.
    assert peak < MANY * 300


@pytest.mark.parametrize("name", sorted(NOT_HERE))
def test_fields_that_this_server_does_not_implement_are_refused(name: str) -> None:
    assert refused({**CHAT, name: {"a": 1}}).param == name


@pytest.mark.parametrize(
    ("params", "kind"), [(CompletionCreateParamsBase, ChatRequest), (TextParams, CompletionBody)]
)
def test_every_other_field_of_the_official_client_is_known(params: Any, kind: Any) -> None:
    fields = set(params.__annotations__) - NOT_HERE
    assert fields - set(kind.model_fields) == set()
    assert len(fields) > 10


@pytest.mark.parametrize("kind", [ChatRequest, TokenizeBody])
def test_a_prompt_ends_in_one_way(kind: Any) -> None:
    ends = {"continue_final_message": True, "add_generation_prompt": True}
    assert "cannot be combined" in refused({**CHAT, **ends}, kind).message


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
    assert parse_body(body, CompletionBody).prompt == prompts


@pytest.mark.parametrize(
    "given", [[], [[]], [1, "a"], [[1], [-1]], [2**31], [1.0], [True], None, {}, 5, [[1], []], ["a", None]]
)
def test_anything_else_is_no_prompt(given: Any) -> None:
    error = refused({**TEXT, "prompt": given}, CompletionBody)
    assert error.param == "prompt"
    assert "must be a string, a list of token ids" in error.message


def test_nothing_is_filled_in_before_a_suffix() -> None:
    error = refused({**TEXT, "suffix": "return x"}, CompletionBody)
    assert (error.param, error.message.partition(":")[0]) == ("suffix", "suffix")
    assert "leave it out" in error.message
    assert "128" in refused({**TEXT, "prompt": ["a"] * 129}, CompletionBody).message


def test_numbers_may_be_whole() -> None:
    assert parse_body(json.dumps({**TEXT, "temperature": 1}).encode(), CompletionBody).temperature == 1.0


@pytest.mark.parametrize("number", ["1e999", "-1e999", "9" * 400 + ".0"])
def test_a_number_too_large_for_a_float_is_refused(number: str) -> None:
    body = '{"model": "m", "prompt": "a", "repetition_penalty": ' + number + "}"
    with pytest.raises(ApiError, match="is too large") as caught:
        parse_body(body.encode(), CompletionBody)
    assert caught.value.status == 400
