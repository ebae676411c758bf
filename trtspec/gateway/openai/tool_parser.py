"""Reads tool calls in answers, in the form of the model's chat template, or of a grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any

from trtspec.gateway.openai.parsed_text import (
    ParsedCall,
    ParsedText,
    is_json,
    read_json,
    split_at_mark,
    split_before_mark,
)

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


class TaggedCalls:
    """Takes an answer as it comes, and finds calls between a form's marks; text around them is content."""

    def __init__(self, form: CallForm, tools: Tools) -> None:
        self._form, self._tools = form, tools
        self._held, self._is_inside = "", False
        self._blanks, self._is_behind_call = "", False

    def push(self, text: str) -> ParsedText:
        found, self._held = ParsedText(), self._held + text
        while self._step(found):
            pass
        return found

    def flush(self) -> ParsedText:
        """Returns the rest when the answer has ended; a complete call counts, closed or not."""
        held, self._held = self._held, ""
        found = ParsedText(calls=self._form.read(held, self._tools) if self._is_inside else [])
        if not found.calls:
            self._show(found, self._form.begin + held if self._is_inside else held)
        return found

    def _step(self, found: ParsedText) -> bool:
        """Goes on to behind the next mark; returns False where there is none."""
        form = self._form
        marks = (form.end,) if self._is_inside else (form.begin, *form.frame)
        marked = split_at_mark(self._held, marks)
        if marked is None:
            if not self._is_inside:
                sure, self._held = split_before_mark(self._held, marks)
                self._show(found, sure)
            return False
        before, mark, self._held = marked
        if not self._is_inside:
            self._show(found, before)
            self._is_inside = mark == form.begin
            self._is_behind_call = self._is_behind_call or not self._is_inside
            return True
        calls = form.read(before, self._tools)
        found.calls += calls
        if calls:
            self._blanks, self._is_behind_call = "", True
        else:
            self._show(found, f"{form.begin}{before}{form.end}")
        self._is_inside = False
        return True

    def _show(self, found: ParsedText, text: str) -> None:
        # Blanks behind a call are content where text follows; before another call or the end they are form.
        if self._is_behind_call:
            text, self._blanks = self._blanks + text, ""
            if not text.strip():
                self._blanks = text
                return
            self._is_behind_call = False
        found.content += text


class BareCalls:
    """Takes an answer that is content, or only calls in JSON; the first character decides.

    JSON that names none of the functions is content: a `response_format` may have names in it too.
    """

    def __init__(self, names: Container[str]) -> None:
        self._held, self._is_content, self._names = "", False, names

    def push(self, text: str) -> ParsedText:
        if self._is_content:
            return ParsedText(text)
        self._held += text
        begin = self._held.lstrip()
        if begin and begin[0] not in "[{":
            self._is_content = True
            return ParsedText(self._taken())
        return ParsedText()

    def flush(self) -> ParsedText:
        held = self._taken()
        calls = calls_in_json(held)
        if not all(call.name in self._names for call in calls):
            calls = []
        return ParsedText("" if calls else held, calls)

    def _taken(self) -> str:
        held, self._held = self._held, ""
        return held


class RequiredCalls:
    """Takes an answer that a grammar made: a list of calls."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> ParsedText:
        self._held += text
        return ParsedText()

    def flush(self) -> ParsedText:
        calls = calls_in_json(self._held)
        return ParsedText("" if calls else self._held, calls)


class NamedCallArguments:
    """Takes an answer that a grammar made: the arguments of one call of `name`, which are forwarded as they
    come.

    So an answer cut by max_tokens is forwarded incomplete, as OpenAI does.
    """

    def __init__(self, name: str) -> None:
        self._name, self._has_begun = name, False

    def push(self, text: str) -> ParsedText:
        if self._has_begun:
            return ParsedText(more=text)
        self._has_begun = True
        return ParsedText(calls=[ParsedCall(self._name, text)])

    def flush(self) -> ParsedText:
        return ParsedText()


def calls_schema(tools: list[dict[str, Any]], name: str | None, *, several: bool) -> dict[str, Any]:
    """Returns the JSON schema of an answer that must be calls: a list of them, or the arguments of `name`.

    Parameters refer to their own parts from their root, so that in a list they are `$defs`, by number.
    """
    functions = {tool["function"]["name"]: tool["function"] for tool in tools}
    if name is not None:
        return _parameters(functions[name])
    schemas = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": {"$ref": f"#/$defs/{number}"}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for number, name in enumerate(functions)
    ]
    parameters = {
        str(number): _moved(_parameters(function), f"#/$defs/{number}")
        for number, function in enumerate(functions.values())
    }
    most = {} if several else {"maxItems": 1}
    return {"type": "array", "minItems": 1, **most, "items": {"anyOf": schemas}, "$defs": parameters}


def _parameters(function: dict[str, Any]) -> dict[str, Any]:
    return function.get("parameters") or {"type": "object", "properties": {}, "additionalProperties": False}


def _moved(schema: Any, root: str) -> Any:
    """Returns a schema whose references from its root are from where that is in another one."""
    if isinstance(schema, list):
        return [_moved(entry, root) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, root) for key, value in schema.items()}
    if isinstance(ref := schema.get("$ref"), str) and (ref == "#" or ref.startswith("#/")):
        moved["$ref"] = root + ref[1:]
    return moved
