"""Reads the tool calls in a model's answer, in the form that its chat template taught it.

Most families write each call between marks (`call_forms.py`). Llama's and Mistral's write nothing but the
calls, as one JSON object or a list of them, after a special token that has no text. Calls that a request
demands are made by a grammar, so the answer has nothing else.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from trtspec.gateway.openai.call_forms import CallForm, Tools, calls_in_json
from trtspec.gateway.openai.parsed import ParsedCall, ParsedText, split_at_mark, split_before_mark


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


class ForcedCalls:
    """Takes an answer that a grammar made: a list of calls."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> ParsedText:
        self._held += text
        return ParsedText()

    def flush(self) -> ParsedText:
        calls = calls_in_json(self._held)
        return ParsedText("" if calls else self._held, calls)


class ForcedArguments:
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
