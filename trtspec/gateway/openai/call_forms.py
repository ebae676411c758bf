"""Reads the forms in which families of models write tool calls between marks, by their chat templates."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trtspec.gateway.openai.parsed import ParsedCall, is_json, read_json

Tools = Mapping[str, Mapping[str, Any]]
"""The schemas of parameters by the names of the functions."""

_SEPARATOR = "<｜tool▁sep｜>"
_FENCED = re.compile(rf"\s*function{_SEPARATOR}([^\n]+)\n```json\n(.*)\n```\s*", re.DOTALL)
_BARE = re.compile(rf"\s*([^\n]+?){_SEPARATOR}(.*)", re.DOTALL)
_NUMBERED = re.compile(r"\s*((?:functions\.)?([\w.-]+):\d+)\s*<\|tool_call_argument_begin\|>(.*)", re.DOTALL)
_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CallForm:
    """The marks around each call, and `read(text, tools)`, which reads the text between them."""

    begin: str
    end: str
    read: Callable[[str, Tools], list[ParsedCall]]
    """Returns no call where the text is none."""
    frame: tuple[str, ...] = ()
    """Marks around all calls together, which say nothing more."""


def form_of(template: str) -> CallForm | None:
    """Returns the form that a chat template teaches; None if it teaches no form with marks."""
    return next((form for mark, form in _FORMS.items() if mark in template), None)


def _deepseek(text: str, tools: Tools) -> list[ParsedCall]:
    """Reads the form of DeepSeek-V3 and R1, whose arguments are fenced, and that of V3.1, with bare ones."""
    found = _FENCED.fullmatch(text) or _BARE.fullmatch(text)
    return [ParsedCall(found[1].strip(), found[2].strip())] if found and is_json(found[2]) else []


def _kimi(text: str, tools: Tools) -> list[ParsedCall]:
    """Reads Kimi K2's form, whose ids contain the function's name, since its template needs them so."""
    found = _NUMBERED.fullmatch(text)
    return [ParsedCall(found[2], found[3].strip(), found[1])] if found and is_json(found[3]) else []


def _glm(text: str, tools: Tools) -> list[ParsedCall]:
    """Reads GLM-4.5's form: strings are plain, and other values are JSON."""
    name, mark, _ = text.partition("<arg_key>")
    name = name.strip()
    if not name or (not mark and name not in tools):
        return []
    properties = tools.get(name, {}).get("properties", {})
    arguments = {
        key.strip(): _value(value, properties.get(key.strip())) for key, value in _ARGUMENT.findall(text)
    }
    return [ParsedCall(name, json.dumps(arguments, ensure_ascii=False))]


def _value(text: str, schema: Any) -> Any:
    is_text = isinstance(schema, dict) and schema.get("type") == "string"
    return text if is_text or not is_json(text) else read_json(text)


def calls_in_json(text: str, tools: Tools | None = None) -> list[ParsedCall]:
    """Returns the calls in a JSON text; none if it is anything else."""
    try:
        said = read_json(text)
    except (ValueError, RecursionError):
        return []
    calls = []
    for entry in said if isinstance(said, list) else [said]:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            return []
        arguments = entry.get("arguments", entry.get("parameters", {}))
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        calls.append(ParsedCall(entry["name"], arguments))
    return calls


_FORMS = {
    "<｜tool▁call▁begin｜>": CallForm(
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        _deepseek,
        ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
    "<|tool_call_begin|>": CallForm(
        "<|tool_call_begin|>",
        "<|tool_call_end|>",
        _kimi,
        ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    ),
    # Both of the last ones write the same marks.
    "<arg_key>": CallForm("<tool_call>", "</tool_call>", _glm),
    "<tool_call>": CallForm("<tool_call>", "</tool_call>", calls_in_json),
}
"""The forms by what tells them in a chat template, those of GLM before those of Qwen and Hermes."""
