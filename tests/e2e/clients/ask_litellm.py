"""Asks a server's chats, completions and responses with LiteLLM; prints what LiteLLM understood as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import litellm  # type: ignore[import-not-found]

PAINT = {
    "type": "function",
    "function": {
        "name": "paint",
        "description": "Paints a wall.",
        "parameters": {
            "type": "object",
            "properties": {"colour": {"enum": ["red", "green"]}},
            "required": ["colour"],
            "additionalProperties": False,
        },
    },
}


def asked(url: str, model: str, prompt: str) -> dict[str, Any]:
    given: dict[str, Any] = {"api_base": url, "api_key": "none", "max_tokens": 100, "temperature": 0}
    chat = {"messages": [{"role": "user", "content": prompt}], **given}
    whole = litellm.completion(f"openai/{model}", **chat)
    chunks = list(litellm.completion(f"openai/{model}", stream=True, **chat))
    called = litellm.completion(f"openai/{model}", tools=[PAINT], tool_choice="required", **chat)
    (call,) = called.choices[0].message.tool_calls
    hosted = litellm.completion(f"hosted_vllm/{model}", **chat)
    text = litellm.text_completion(model=f"text-completion-openai/{model}", prompt=prompt, **given)
    del given["max_tokens"]
    made = litellm.responses(input=prompt, model=f"openai/{model}", max_output_tokens=100, **given)
    return {
        "text": whole.choices[0].message.content,
        "usage": whole.usage.completion_tokens,
        "pieces": [chunk.choices[0].delta.content or "" for chunk in chunks],
        "call": (call.function.name, json.loads(call.function.arguments)),
        "hosted": hosted.choices[0].message.content,
        "completion": text.choices[0].text,
        "responses": made.output[0].content[0].text,
    }


print(json.dumps(asked(*sys.argv[1:])))
