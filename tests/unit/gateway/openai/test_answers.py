"""Answers with reasoning, whole and in chunks, as OpenAI's client reads them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from trtspec.gateway.openai.answers import (
    DONE,
    Chat,
    Completions,
    ResponseBuilder,
    TokenIds,
    chat_log_probs,
    completion_log_probs,
)
from trtspec.gateway.openai.model_output import ChoicePiece, TokenCounts
from trtspec.gateway.openai.model_request import ModelRequest, chat, completion
from trtspec.gateway.openai.schema import ChatRequest, CompletionBody
from trtspec.serving.executor import LogProb

SAID = [*"<think>Two.</think>", '<tool_call>{"name": "f", "arguments": {}}</tool_call>', "Four."]
TOOL = {"type": "function", "function": {"name": "f"}}


def asked(**values: Any) -> ModelRequest:
    messages = [{"role": "user", "content": "a"}]
    body = {"model": "m", "messages": messages, "tools": [TOOL], **values}
    return chat(ChatRequest.model_validate(body), "prompt", "<think></think><tool_call> tools", "", None)


def pieces() -> list[ChoicePiece]:
    made = [ChoicePiece(0, text) for text in SAID]
    made[-1] = ChoicePiece(0, SAID[-1], "stop", counts=TokenCounts(3, 9))
    return made


def test_a_whole_answer_has_the_reasoning_under_both_names() -> None:
    text = "".join(SAID)
    builder = ResponseBuilder(Chat(), asked(), "m", None, "name")
    body = builder.whole([ChoicePiece(0, text, "stop", counts=TokenCounts(3, 9))])
    made = ChatCompletion.model_validate_json(body, strict=True)
    (choice,) = made.choices
    message = choice.message.model_dump()
    assert (message["reasoning_content"], message["reasoning"]) == ("Two.", "Two.")
    assert (choice.message.content, choice.finish_reason) == ("Four.", "tool_calls")
    assert made.usage
    # Without a tokenizer nobody can count.
    assert made.usage.completion_tokens_details is None


@pytest.mark.parametrize(
    ("cached", "told"), [([0, 0], 0), ([2, 1], 3), ([None, None], None), ([2, None], None)]
)
def test_a_prompt_counts_once_and_what_is_not_known_of_all_is_left_out(
    cached: list[int | None], told: int | None
) -> None:
    body = {"model": "m", "prompt": ["a", "b"], "n": 2}
    request = completion(CompletionBody.model_validate(body), "", None)
    builder = ResponseBuilder(Completions(), request, "m", None, "name")
    # The second choice of a prompt finds what the first one has computed.
    counts = [TokenCounts(3, 9, cached[0]), TokenCounts(3, 9, 3), TokenCounts(3, 9, cached[1])]
    counts.append(TokenCounts(3, 9, 3))
    last = [ChoicePiece(number, "", "stop", counts=each) for number, each in enumerate(counts)]
    usage = Completion.model_validate_json(builder.whole(last)).usage
    assert usage
    details = usage.prompt_tokens_details
    assert (usage.prompt_tokens, details and details.cached_tokens) == (6, told)


def test_chunks_are_the_same_as_the_whole() -> None:
    builder = ResponseBuilder(Chat(), asked(stream=True), "m", None, "name")
    events = b"".join(builder.chunk([piece]) for piece in pieces()) + builder.end()
    assert events.endswith(DONE)
    deltas = []
    for event in events.removesuffix(DONE).split(b"\n\n")[:-1]:
        chunk = ChatCompletionChunk.model_validate_json(event.removeprefix(b"data: "), strict=True)
        deltas.append(chunk.choices[0].delta.model_dump(exclude_none=True))
    for field, text in (("reasoning", "Two."), ("reasoning_content", "Two."), ("content", "Four.")):
        assert "".join(delta.get(field, "") for delta in deltas) == text
    (call,) = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("f", {})


def test_a_grammar_leaves_no_reasoning() -> None:
    body = {"response_format": {"type": "json_object"}, "tools": []}
    assert asked(**body).parsing is None


PIECE = ChoicePiece(
    0, "ab", None, (7, 8), (LogProb(-0.5, ((7, -0.5), (1, -1.0))), LogProb(-2.0, ((9, -0.25),)))
)


def test_a_completion_names_tokens_by_their_ids() -> None:
    told = completion_log_probs(TokenIds(), PIECE, 0)
    assert told["tokens"] == ["token_id:7", "token_id:8"]
    assert told["top_logprobs"] == [
        {"token_id:7": -0.5, "token_id:1": -1.0},
        {"token_id:9": -0.25, "token_id:8": -2.0},
    ]


def test_a_chat_names_tokens_by_their_ids() -> None:
    first, second = chat_log_probs(TokenIds(), PIECE)["content"]
    assert [entry["token"] for entry in (first, *first["top_logprobs"])] == ["token_id:7"] * 2 + [
        "token_id:1"
    ]
    assert bytes(second["bytes"]) == b"token_id:8"
