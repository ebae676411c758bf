"""Asks a server's chats and responses with LangChain; prints what LangChain understood as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any, Literal

from langchain_core.tools import tool  # type: ignore[import-not-found]
from langchain_openai import ChatOpenAI  # type: ignore[import-not-found]
from pydantic import BaseModel

Colour = Literal["red", "green"]


class Light(BaseModel):
    """The state of a light."""

    colour: Colour
    is_on: bool


@tool  # type: ignore[untyped-decorator]
def paint(colour: Colour, twice: bool) -> str:
    """Paints a wall."""
    return f"the wall is {colour}"


def asked(url: str, model: str, prompt: str) -> dict[str, Any]:
    given: dict[str, Any] = {"base_url": url, "api_key": "none", "model": model, "temperature": 0}
    chat = ChatOpenAI(**given, max_tokens=100, max_retries=0)
    responses = ChatOpenAI(**given, max_tokens=100, max_retries=0, use_responses_api=True)
    whole = chat.invoke(prompt)
    chunks = list(chat.stream(prompt, stream_usage=True))
    called = chat.bind_tools([paint], tool_choice="required").invoke(prompt)
    return {
        "text": whole.content,
        "finish_reason": whole.response_metadata["finish_reason"],
        "usage": whole.usage_metadata["output_tokens"],
        "pieces": [chunk.content for chunk in chunks],
        "streamed_usage": [chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata],
        "light": chat.with_structured_output(Light, method="json_schema").invoke(prompt).model_dump(),
        "calls": [(call["name"], call["args"]) for call in called.tool_calls],
        "responses": responses.invoke(prompt).text,
        "responses_light": responses.with_structured_output(Light).invoke(prompt).model_dump(),
    }


print(json.dumps(asked(*sys.argv[1:])))
