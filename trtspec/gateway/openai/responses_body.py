"""Reads the body of `/v1/responses`, and turns it into a chat.

The server stores nothing, so a request contains the whole conversation. Fields that would need a store are
refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, ValidationError, model_validator

from trtspec.gateway.openai.errors import ApiError
from trtspec.gateway.openai.schema import ONLY_TEXT, Body, ChatRequest, Function, NamedTool

_MOST_ITEMS = 4096


def _no_store(given: Any) -> None:
    if given:
        raise ValueError("this server stores no responses; leave it out, and send the conversation as input")


_Unkept = Annotated[None, PlainValidator(_no_store)]


class InputText(Body):
    """A part of a message; answers come back with what is beside their text."""

    type: Annotated[Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"], ONLY_TEXT]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None
    parsed: Any = None


_Texts = str | Annotated[list[InputText], Field(fail_fast=True, max_length=_MOST_ITEMS)]


class MessageItem(Body):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: _Texts
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class CallItem(Body):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    parsed_arguments: Any = None
    async_: None = None
    caller: None = None
    namespace: None = None
    id: str | None = None
    status: str | None = None


class OutputItem(Body):
    type: Literal["function_call_output"]
    call_id: str
    output: _Texts
    id: str | None = None
    status: str | None = None


class ReasoningItem(Body):
    type: Literal["reasoning"]
    id: str | None = None
    summary: list[InputText] | None = None
    content: list[InputText] | None = None
    encrypted_content: str | None = None
    status: str | None = None


Item = MessageItem | CallItem | OutputItem | ReasoningItem


class FunctionTool(Function):
    type: Literal["function"]

    @model_validator(mode="before")
    @classmethod
    def _is_function(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("type") != "function":
            raise ValueError("a tool must have the type function: this server runs no tools itself")
        return given


class ChosenTool(Body):
    type: Literal["function"]
    name: str


class TextFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    name: str = ""
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextOptions(Body):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(Body):
    effort: str | None = None
    # Nobody summarizes: the reasoning itself is told.
    summary: str | None = None
    generate_summary: str | None = None


class StreamedOptions(Body):
    include_obfuscation: bool | None = None


class ResponsesBody(Body):
    """A body of `/v1/responses`."""

    model: str
    input: str | Annotated[list[Item], Field(fail_fast=True, min_length=1, max_length=_MOST_ITEMS)]
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1, lt=2**31)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    stream: bool | None = None
    stream_options: StreamedOptions | None = None
    tools: Annotated[list[FunctionTool], Field(fail_fast=True, max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    user: str | None = None
    safety_identifier: str | None = None
    previous_response_id: _Unkept = None
    conversation: _Unkept = None
    background: _Unkept = None
    # Without an effect on the answer, and on what is kept of it: nothing.
    store: bool | None = None
    metadata: dict[str, str] | None = None
    include: list[Literal["reasoning.encrypted_content"]] | None = None
    truncation: Literal["disabled"] | None = None
    service_tier: Literal["auto", "default"] | None = None
    prompt_cache_key: str | None = None


def as_chat(body: ResponsesBody) -> ChatRequest:
    """Returns the same request as a chat; raises `ApiError` for fields that a chat cannot have."""
    choice: str | NamedTool | None = None
    if isinstance(body.tool_choice, ChosenTool):
        choice = NamedTool.model_validate({"type": "function", "function": {"name": body.tool_choice.name}})
    elif body.tools or body.tool_choice == "required":
        # Clients say auto without tools too.
        choice = body.tool_choice
    values = {
        "model": body.model,
        "messages": _messages(body),
        "max_completion_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "stream": body.stream,
        "tools": [
            {"type": "function", "function": tool.model_dump(exclude={"type"})} for tool in body.tools or ()
        ],
        "tool_choice": choice,
        "parallel_tool_calls": body.parallel_tool_calls,
        "reasoning_effort": body.reasoning.effort if body.reasoning else None,
        "verbosity": body.text.verbosity if body.text else None,
        "response_format": _format(body.text.format if body.text else None),
        "user": body.user,
        "safety_identifier": body.safety_identifier,
    }
    try:
        return ChatRequest.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise ApiError(400, f"{field}: {first['msg']}" if field else first["msg"], field or None) from None


def _messages(body: ResponsesBody) -> list[dict[str, Any]]:
    """Returns the messages; an assistant's reasoning, text and calls that follow one another are one."""
    messages: list[dict[str, Any]] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*messages, {"role": "user", "content": body.input}]
    thought = ""
    for item in body.input:
        if isinstance(item, ReasoningItem):
            thought += "".join(part.text for part in item.content or item.summary or [])
            continue
        if isinstance(item, OutputItem):
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _parts(item.output)})
            continue
        role = item.role if isinstance(item, MessageItem) else "assistant"
        if role != "assistant" or not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": role, "content": []})
        if thought and role == "assistant":
            messages[-1]["reasoning"], thought = thought, ""
        if isinstance(item, MessageItem):
            messages[-1]["content"] += _parts(item.content)
        else:
            function = {"name": item.name, "arguments": item.arguments}
            calls = messages[-1].setdefault("tool_calls", [])
            calls.append({"id": item.call_id, "type": "function", "function": function})
    return messages


def _parts(said: str | list[InputText]) -> list[dict[str, str]]:
    texts = [said] if isinstance(said, str) else [part.text for part in said]
    return [{"type": "text", "text": text} for text in texts]


def _format(wanted: TextFormat | None) -> dict[str, Any] | None:
    if wanted is None or wanted.type != "json_schema":
        return {"type": wanted.type} if wanted else None
    return {"type": "json_schema", "json_schema": {"name": wanted.name, "schema": wanted.schema_ or {}}}
