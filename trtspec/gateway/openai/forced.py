"""Reads calls that a request demands: a grammar makes them, so the answer has nothing else."""

from __future__ import annotations

from typing import Any

from trtspec.gateway.openai.call_forms import calls_in_json
from trtspec.gateway.openai.parsed import ParsedCall, ParsedText


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
