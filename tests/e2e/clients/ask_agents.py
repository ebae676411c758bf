"""Asks a server's /v1/responses with OpenAI's Agents SDK; prints what the SDK understood as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, Literal

from agents import (  # type: ignore[import-not-found]
    Agent,
    ModelSettings,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

Colour = Literal["red", "green"]
CALLED = list[dict[str, Any]]()


class Light(BaseModel):
    colour: Colour
    is_on: bool


@function_tool  # type: ignore[untyped-decorator]
def paint(colour: Colour, twice: bool) -> str:
    """Paints a wall."""
    CALLED.append({"colour": colour, "twice": twice})
    return f"the wall is {colour}"


async def asked(url: str, model_name: str, prompt: str) -> dict[str, Any]:
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
    model, greedy = OpenAIResponsesModel(model_name, client), ModelSettings(temperature=0, max_tokens=100)
    agent = Agent("light", model=model, model_settings=greedy, output_type=Light)
    whole = await Runner.run(agent, prompt)
    streamed = Runner.run_streamed(agent, prompt)
    pieces = [
        event.data.delta
        async for event in streamed.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    required = ModelSettings(temperature=0, max_tokens=100, tool_choice="required")
    painter = Agent(
        "painter", model=model, model_settings=required, tools=[paint], tool_use_behavior="stop_on_first_tool"
    )
    painted = await Runner.run(painter, prompt)
    return {
        "text": whole.final_output.model_dump(),
        "streamed": streamed.final_output.model_dump(),
        "pieces": pieces,
        "usage": whole.context_wrapper.usage.output_tokens,
        "called": CALLED,
        "painted": painted.final_output,
    }


print(json.dumps(asyncio.run(asked(*sys.argv[1:]))))
