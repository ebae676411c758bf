"""The Responses API of OpenAI: its requests as chats, and its answers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field, PlainValidator, ValidationError, model_validator

from trtspec.gateway.openai.errors import ApiError
from trtspec.gateway.openai.model_output import ChoicePiece
from trtspec.gateway.openai.model_request import ModelRequest
from trtspec.gateway.openai.output_parser import ParsedCall, ParsedText
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


# For each kind of item: its events, and the place of its text.
_EVENTS = {
    "reasoning": ("response.reasoning_text", "reasoning_text"),
    "message": ("response.output_text", "output_text"),
    "function_call": ("response.function_call_arguments", ""),
}


class ItemsBuilder:
    """One answer, to the request of that name; events are counted from 0."""

    def __init__(self, body: ResponsesBody, request: ModelRequest, name: str) -> None:
        self._request, self._name = request, name
        self._parser = request.parsing.parser() if request.parsing else None
        self._counter = request.parsing.counter() if request.parsing and request.parsing.counter else None
        self._number, self._blanks, self._num_calls = 0, "", 0
        self._open: dict[str, Any] | None = None
        self._said = ""
        self._response: dict[str, Any] = {
            "id": f"resp_{name}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "output": [],
            "usage": None,
            "previous_response_id": None,
            **_echoed(body),
        }

    def whole(self, pieces: Iterable[ChoicePiece]) -> bytes:
        """Returns the whole answer."""
        self.chunk(pieces)
        return orjson.dumps(self._response)

    def chunk(self, pieces: Iterable[ChoicePiece]) -> bytes:
        """Returns the events that some pieces are."""
        begun = b""
        if not self._number:
            begun = self._event("response.created", response=self._response)
            begun += self._event("response.in_progress", response=self._response)
        return begun + b"".join(self._events(piece) for piece in pieces)

    def end(self) -> bytes:
        """Returns the last event, when every piece has come."""
        return self._event(f"response.{self._response['status']}", response=self._response)

    def _events(self, piece: ChoicePiece) -> bytes:
        if self._counter:
            self._counter.push(piece.token_ids)
        found = self._parser.push(piece.text) if self._parser else ParsedText(piece.text)
        if piece.finish_reason and self._parser:
            found = found.followed_by(self._parser.flush())
        events = self._events_of(found)
        if piece.finish_reason:
            events += self._close(is_whole=piece.finish_reason != "length")
            self._finish(piece)
        return events

    def _events_of(self, found: ParsedText) -> bytes:
        events = self._more(found.more) if found.more else b""
        if found.reasoning:
            events += self._text("reasoning", found.reasoning)
        if found.content:
            text, self._blanks = self._blanks + found.content, ""
            if text.strip() or (self._open and self._open["type"] == "message"):
                events += self._text("message", text)
            else:
                # Blanks before a call are not content.
                self._blanks = text
        calls = found.calls if self._request.several_calls else found.calls[: max(1 - self._num_calls, 0)]
        for call in calls:
            events += self._call(call)
        return events

    def _text(self, kind: str, text: str) -> bytes:
        events = b""
        if self._open is None or self._open["type"] != kind:
            events = self._close()
            item = {"type": kind, "id": self._id("msg" if kind == "message" else "rs"), "content": []}
            events += self._begin(
                {**item, **({"role": "assistant"} if kind == "message" else {"summary": []})}
            )
            if kind == "message":
                events += self._event("response.content_part.added", **self._place(), part=_part(kind, ""))
        return events + self._more(text)

    def _call(self, call: ParsedCall) -> bytes:
        self._num_calls += 1
        item = {"type": "function_call", "id": self._id("fc"), "call_id": call.id, "name": call.name}
        return self._close() + self._begin({**item, "arguments": ""}) + self._more(call.arguments)

    def _begin(self, item: dict[str, Any]) -> bytes:
        self._open, self._said = {**item, "status": "in_progress"}, ""
        place = len(self._response["output"])
        return self._event("response.output_item.added", output_index=place, item=self._open)

    def _more(self, text: str) -> bytes:
        if self._open is None:
            return b""
        self._said += text
        name, _ = _EVENTS[self._open["type"]]
        extra: dict[str, Any] = {"logprobs": []} if self._open["type"] == "message" else {}
        return self._event(f"{name}.delta", **self._place(), delta=text, **extra)

    def _close(self, *, is_whole: bool = True) -> bytes:
        if self._open is None:
            return b""
        kind, place = self._open["type"], self._place()
        name, part = _EVENTS[kind]
        if part:
            self._open["content"] = [_part(kind, self._said)]
            extra: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
            events = self._event(f"{name}.done", **place, text=self._said, **extra)
            if kind == "message":
                events += self._event("response.content_part.done", **place, part=_part(kind, self._said))
        else:
            self._open["arguments"] = self._said
            named = {"arguments": self._said, "name": self._open["name"]}
            events = self._event(f"{name}.done", **place, **named)
        self._open["status"] = "completed" if is_whole else "incomplete"
        done = {"output_index": place["output_index"], "item": self._open}
        events += self._event("response.output_item.done", **done)
        self._response["output"].append(self._open)
        self._open = None
        return events

    def _finish(self, piece: ChoicePiece) -> None:
        is_cut = piece.finish_reason == "length"
        self._response["status"] = "incomplete" if is_cut else "completed"
        if is_cut:
            self._response["incomplete_details"] = {"reason": "max_output_tokens"}
        if piece.counts:
            # The form demands numbers.
            cached = piece.counts.num_cached_tokens or 0
            thought = self._counter.number if self._counter else 0
            counts = replace(piece.counts, num_cached_tokens=cached, num_reasoning_tokens=thought)
            self._response["usage"] = usage = counts.usage("input", "output")
            usage["input_tokens_details"]["cache_write_tokens"] = 0

    def _place(self) -> dict[str, Any]:
        assert self._open is not None
        place = {"item_id": self._open["id"], "output_index": len(self._response["output"])}
        return place if self._open["type"] == "function_call" else {**place, "content_index": 0}

    def _id(self, prefix: str) -> str:
        return f"{prefix}_{len(self._response['output'])}_{self._name}"

    def _event(self, kind: str, **said: Any) -> bytes:
        data = orjson.dumps({"type": kind, "sequence_number": self._number, **said})
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def _part(kind: str, text: str) -> dict[str, Any]:
    beside: dict[str, Any] = {"annotations": [], "logprobs": []} if kind == "message" else {}
    return {"type": _EVENTS[kind][1], "text": text, **beside}


def _echoed(body: ResponsesBody) -> dict[str, Any]:
    """Returns what a response repeats of its request."""
    said = body.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {
        "model": body.model,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "reasoning": said.get("reasoning", {}),
        "store": False,
        "temperature": body.temperature,
        "text": {"format": {"type": "text"}, **said.get("text", {})},
        "tool_choice": said.get("tool_choice", "auto"),
        "tools": said.get("tools", []),
        "top_p": body.top_p,
        "truncation": "disabled",
    }
