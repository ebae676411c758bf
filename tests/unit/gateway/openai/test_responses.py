"""`/v1/responses` as OpenAI's client reads it: its types judge every event."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from trtspec.gateway.openai.errors import ApiError
from trtspec.gateway.openai.model_output import ChoicePiece, TokenCounts
from trtspec.gateway.openai.model_request import chat, template_messages
from trtspec.gateway.openai.responses import ItemsBuilder, ResponsesBody, as_chat
from trtspec.gateway.openai.schema import parse_body

EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
SAID = [*"<think>Two.</think>", "\n\n", "Fo", "ur.", CALL, "\n", CALL]


def builder(**values: Any) -> ItemsBuilder:
    said = parse_body(
        json.dumps({"model": "m", "input": "a", "tools": [TOOL], **values}).encode(), ResponsesBody
    )
    request = chat(as_chat(said), "prompt", "<think></think><tool_call> tools", "", None)
    return ItemsBuilder(said, request, "name")


def pieces(texts: list[str], reason: str = "stop") -> list[ChoicePiece]:
    made = [ChoicePiece(0, text) for text in texts]
    made[-1] = ChoicePiece(0, texts[-1], reason, counts=TokenCounts(3, 9, 2))
    return made


def events_of(made: ItemsBuilder, texts: list[str], reason: str = "stop") -> list[Any]:
    data = b"".join(made.chunk([piece]) for piece in pieces(texts, reason)) + made.end()
    events = []
    for block in data.decode().removesuffix("\n\n").split("\n\n"):
        name, said = block.split("\n")
        event = json.loads(said.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        EVENT.validate_python(event)
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def test_events_tell_items_in_openais_order() -> None:
    events = events_of(builder(), SAID)
    kinds = [event["type"].removeprefix("response.") for event in events]
    steps = [kind for kind, before in zip(kinds, ["", *kinds], strict=False) if kind != before]
    part = ["content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
    call = [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]
    assert steps == [
        *("created", "in_progress", "output_item.added", "reasoning_text.delta", "reasoning_text.done"),
        *("output_item.done", "output_item.added", *part, "output_item.done", *call, *call, "completed"),
    ]


def test_the_last_event_is_the_whole_answer() -> None:
    whole = json.loads(builder().whole(pieces(SAID)))
    last = events_of(builder(), SAID)[-1]["response"]
    for response in (whole, last):
        del response["created_at"]
        for item in response["output"]:
            # Those of calls are chance.
            item.update({"call_id": "1"} if "call_id" in item else {})
    assert last == whole
    made = Response.model_validate({**whole, "created_at": 0})
    assert [item.type for item in made.output] == ["reasoning", "message", "function_call", "function_call"]
    assert (made.output_text, made.status) == ("\n\nFour.", "completed")
    assert made.usage
    assert (made.usage.input_tokens, made.usage.output_tokens, made.usage.total_tokens) == (3, 9, 12)
    assert made.usage.input_tokens_details.cached_tokens == 2


def test_an_answer_that_was_cut_says_so() -> None:
    last = events_of(builder(), ["Fo", "ur"], "length")[-1]
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "incomplete")
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert last["response"]["output"][0]["status"] == "incomplete"


def test_blanks_before_a_call_are_no_message() -> None:
    whole = json.loads(builder().whole(pieces(["<think>a</think>\n\n" + CALL])))
    assert [item["type"] for item in whole["output"]] == ["reasoning", "function_call"]


def test_a_forced_call_is_told_as_it_comes() -> None:
    events = events_of(builder(tool_choice={"type": "function", "name": "f"}), ['{"a', '": ', "1}"])
    deltas = [event["delta"] for event in events if event["type"].endswith("arguments.delta")]
    assert deltas == ['{"a', '": ', "1}"]
    assert events[-1]["response"]["output"][0]["arguments"] == '{"a": 1}'


def test_items_that_come_back_are_messages_for_the_template() -> None:
    output = json.loads(builder().whole(pieces(SAID)))["output"]
    result = {"type": "function_call_output", "call_id": output[2]["call_id"], "output": "7"}
    said = [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}, *output, result]
    body = parse_body(
        json.dumps({"model": "m", "input": said, "instructions": "Be short."}).encode(), ResponsesBody
    )
    system, user, assistant, tool = template_messages(as_chat(body))
    assert (system["content"], user["content"], tool["content"]) == ("Be short.", "a", "7")
    assert (assistant["content"], assistant["reasoning_content"]) == ("\n\nFour.", "Two.")
    assert [call["function"]["arguments"] for call in assistant["tool_calls"]] == ['{"a": 1}'] * 2
    assert tool["tool_call_id"] == assistant["tool_calls"][0]["id"]


def test_texts_of_one_item_stay_apart_for_the_template() -> None:
    """They are joined where those of a chat are, and not run together before."""
    two = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    said = [{"role": "user", "content": two}, {"type": "function_call_output", "call_id": "c", "output": two}]
    body = parse_body(json.dumps({"model": "m", "input": said}).encode(), ResponsesBody)
    user, tool = template_messages(as_chat(body))
    assert user["content"] == tool["content"] == [{"type": "text", "text": text} for text in ("a", "b")]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"tool_choice": {"type": "function", "name": "other"}}, None),
    ],
)
def test_a_response_request_with_an_unsupported_field_is_refused_by_its_name(
    change: dict[str, Any], field: str | None
) -> None:
    body = {"model": "m", "input": "a", "tools": [TOOL], **change}
    with pytest.raises(ApiError) as caught:
        as_chat(parse_body(json.dumps(body).encode(), ResponsesBody))
    assert caught.value.status == 400
    if field:
        assert caught.value.param == field
