"""Translates OpenAI's older form of tools: functions in a request, and at most one call in an answer."""

from __future__ import annotations

from typing import Any

from trtspec.gateway.openai import schema
from trtspec.gateway.openai.answers import Chat
from trtspec.gateway.openai.parsed_text import ParsedCall, ParsedText


def with_tools(body: schema.ChatRequest) -> schema.ChatRequest:
    """Returns the same request with tools instead of functions, also in its messages."""
    changes: dict[str, Any] = {"messages": _messages(body.messages)}
    if body.functions:
        choice: Any = body.function_call
        if isinstance(choice, schema.NamedFunction):
            choice = schema.NamedTool(type="function", function=choice)
        changes |= {
            "tools": [schema.ToolBody(type="function", function=function) for function in body.functions],
            "tool_choice": choice,
            "parallel_tool_calls": False,
        }
    return body.model_copy(update=changes)


def _messages(said: list[schema.MessageBody]) -> list[schema.MessageBody]:
    """Returns messages whose calls have ids, as templates want them; a function answers the last call."""
    messages, last = [], ""
    for number, message in enumerate(said):
        changes: dict[str, Any] = {}
        if message.function_call is not None:
            last = f"{number:09d}"
            changes = {"tool_calls": [schema.ToolCall(id=last, function=message.function_call)]}
        elif message.role == "function":
            changes = {"role": "tool", "tool_call_id": last}
        messages.append(message.model_copy(update=changes) if changes else message)
    return messages


class FunctionChat(Chat):
    """`/v1/chat/completions` for a request with functions."""

    called = "function_call"

    def some_calls(self, found: ParsedText, first: int) -> dict[str, Any]:
        if found.more:
            return {"function_call": {"arguments": found.more}}
        return self.all_calls(found.calls) if found.calls else {}

    def all_calls(self, calls: list[ParsedCall]) -> dict[str, Any]:
        (call,) = calls
        return {"function_call": {"name": call.name, "arguments": call.arguments}}
