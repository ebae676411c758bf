"""The tool calls in a model's answer, in the form that its chat template taught it.

Two forms cover the families that trtspec builds. Qwen's and Hermes' templates have each call between
`<tool_call>` and `</tool_call>`. Llama's and Mistral's write nothing but the calls, as one JSON object or a
list of them, after a special token that has no text.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

_BEGIN, _END = "<tool_call>", "</tool_call>"
# As long as Mistral's templates demand.
_ID_LENGTH = 9


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """One call: the function's name, and its arguments in JSON."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:_ID_LENGTH])


@dataclass(slots=True)
class ParsedText:
    """The content and the calls that were read from some text of an answer."""

    content: str = ""
    calls: list[ParsedCall] = field(default_factory=list)
    more: str = ""
    """More of the arguments of the last call that was found before."""


class TaggedCalls:
    """Takes an answer as it comes, and finds calls between tags; what is around them is content."""

    def __init__(self) -> None:
        self._held, self._is_inside = "", False
        self._blanks, self._is_behind_call = "", False

    def push(self, text: str) -> ParsedText:
        """Takes more of the answer; what may be the beginning of a tag is held back."""
        found, self._held = ParsedText(), self._held + text
        while True:
            tag = _END if self._is_inside else _BEGIN
            before, is_there, after = self._held.partition(tag)
            if not is_there:
                if not self._is_inside:
                    keep = _overlap(self._held, tag)
                    self._show(found, self._held[: len(self._held) - keep])
                    self._held = self._held[len(self._held) - keep :]
                return found
            if self._is_inside:
                calls = _calls(before)
                found.calls += calls
                if calls:
                    self._blanks, self._is_behind_call = "", True
                else:
                    self._show(found, f"{_BEGIN}{before}{_END}")
            else:
                self._show(found, before)
            self._held, self._is_inside = after, not self._is_inside

    def flush(self) -> ParsedText:
        """Returns what is left when the answer has ended; a whole call counts, closed or not."""
        held, self._held = self._held, ""
        found = ParsedText(calls=_calls(held) if self._is_inside else [])
        if not found.calls:
            self._show(found, _BEGIN + held if self._is_inside else held)
        return found

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
    """Takes an answer that is content, or nothing but calls in JSON, as its first character tells.

    JSON that names none of the functions is content: a `response_format` may have names in it too.
    """

    def __init__(self, names: Set[str]) -> None:
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
        calls = _calls(held)
        if not all(call.name in self._names for call in calls):
            calls = []
        return ParsedText("" if calls else held, calls)

    def _taken(self) -> str:
        held, self._held = self._held, ""
        return held


class ForcedCalls:
    """Takes an answer that a grammar made: a list of calls."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> ParsedText:
        self._held += text
        return ParsedText()

    def flush(self) -> ParsedText:
        calls = _calls(self._held)
        return ParsedText("" if calls else self._held, calls)


class ForcedArguments:
    """Takes an answer that a grammar made: the arguments of one call of `name`, which are told as they come.

    So an answer that max_tokens has cut is told as it is, as OpenAI does.
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


Calls = TaggedCalls | BareCalls | ForcedCalls | ForcedArguments


def reader(template: str, names: Set[str]) -> Calls:
    """Returns the reader for models of this chat template, which may call the functions of these names."""
    return TaggedCalls() if _BEGIN in template else BareCalls(names)


def forced_schema(tools: list[dict[str, Any]], name: str | None, *, several: bool) -> dict[str, Any]:
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


def _calls(text: str) -> list[ParsedCall]:
    """Returns the calls that a text is; none where it is anything else."""
    try:
        said = json.loads(text)
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


def _overlap(text: str, tag: str) -> int:
    """Says how many characters at the end of a text may begin the tag."""
    return next((size for size in range(len(tag) - 1, 0, -1) if text.endswith(tag[:size])), 0)
