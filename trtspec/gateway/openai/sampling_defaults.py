"""Reads the default sampling from a model's `generation_config.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import TypeVar

from trtspec.gateway.openai.schema import ChatRequest, SharedBody

# By what transformers samples without the file; vLLM takes a value that is the same for none.
_USUAL = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": 0.0}
_MOST, _LIMITS = "max_new_tokens", ("max_tokens", "max_completion_tokens")
R = TypeVar("R", bound=SharedBody)


def read_defaults(folder: Path) -> dict[str, float]:
    """Returns what vLLM takes from a folder's `generation_config.json`; nothing where there is no such file.

    `repetition_penalty` is left out: it would turn off the drafts of every request. Raises ValueError for a
    file that is not JSON.
    """
    file = folder / "generation_config.json"
    said = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if not isinstance(said, dict):
        return {}
    found = {name: said.get(name) for name in (*_USUAL, _MOST)}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, (int, float)) and isfinite(value) and value != _USUAL.get(name)
    }


def with_defaults(body: R, defaults: Mapping[str, float]) -> R:
    """Returns the body with defaults for missing fields.

    `max_new_tokens` limits every answer, even if the request asks for more.
    """
    values = {
        name: value for name, value in defaults.items() if name != _MOST and getattr(body, name) is None
    }
    if most := defaults.get(_MOST):
        asked = [name for name in _LIMITS if getattr(body, name, None) is not None]
        # A completion is short unless it asks for more; a chat is not.
        limited = asked or (["max_tokens"] if isinstance(body, ChatRequest) else [])
        values |= {name: min(getattr(body, name) or most, most) for name in limited}
    return body.model_copy(update=values)
