"""Parses an answer's text: content, reasoning and tool calls, in the form of the model's chat template.

A form of reasoning has marks at both ends, each in one or more wordings. Its names are those of vLLM's
parsers.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isinf
from typing import Any, NoReturn, Protocol

from trtspec.serving.tokenizer import Tokenizer

# As long as Mistral's templates demand.
_ID_LENGTH = 9
_LONGEST_DIGITS = 400


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """One call: the function's name, and its arguments in JSON."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:_ID_LENGTH])


@dataclass(slots=True)
class ParsedText:
    """The content, the reasoning and the calls that were read from some text of an answer."""

    content: str = ""
    calls: list[ParsedCall] = field(default_factory=list)
    more: str = ""
    """More of the arguments of the last call that was found before."""
    reasoning: str = ""

    def followed_by(self, later: ParsedText) -> ParsedText:
        return ParsedText(
            self.content + later.content,
            self.calls + later.calls,
            self.more + later.more,
            self.reasoning + later.reasoning,
        )

    @property
    def is_empty(self) -> bool:
        return not (self.content or self.calls or self.more or self.reasoning)


class OutputParser(Protocol):
    """Takes the text of an answer as it comes, in any pieces, and returns its parts."""

    def push(self, text: str) -> ParsedText:
        """Takes more of the answer; holds back text that may begin a mark."""
        ...

    def flush(self) -> ParsedText:
        """Returns the rest when the answer has ended."""
        ...


class InTurn:
    """Takes the reasoning out of an answer, and then the calls out of the rest."""

    def __init__(self, reasoning: Callable[[], OutputParser], calls: Callable[[], OutputParser]) -> None:
        self._reasoning, self._calls = reasoning(), calls()

    def push(self, text: str) -> ParsedText:
        return self._on(self._reasoning.push(text))

    def flush(self) -> ParsedText:
        return self._on(self._reasoning.flush()).followed_by(self._calls.flush())

    def _on(self, found: ParsedText) -> ParsedText:
        return ParsedText(reasoning=found.reasoning).followed_by(self._calls.push(found.content))


def split_at_mark(text: str, marks: Sequence[str]) -> tuple[str, str, str] | None:
    """Returns the text before the first mark in it, that mark, and the text behind; None without a mark."""
    places = [(place, mark) for mark in marks if (place := text.find(mark)) >= 0]
    if not places:
        return None
    place, mark = min(places)
    return text[:place], mark, text[place + len(mark) :]


def split_before_mark(text: str, marks: Sequence[str]) -> tuple[str, str]:
    """Returns a text without a mark up to the end that may begin one, and that end."""
    size = len(text) - max(_overlap(text, mark) for mark in marks)
    return text[:size], text[size:]


def _overlap(text: str, mark: str) -> int:
    """Says how many characters at the end of a text may begin the mark."""
    return next((size for size in range(len(mark) - 1, 0, -1) if text.endswith(mark[:size])), 0)


def is_json(text: str) -> bool:
    """Says whether a text is JSON, as the arguments of a call must be."""
    try:
        read_json(text)
    except (ValueError, RecursionError):
        return False
    return True


def read_json(text: str | bytes) -> Any:
    """Returns a value that can be written as JSON again: none is NaN or infinite.

    Raises ValueError, or RecursionError for text that is nested too deeply.
    """
    return json.loads(text, parse_constant=_refuse, parse_int=_whole, parse_float=_number)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _whole(digits: str) -> int:
    if len(digits) > _LONGEST_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits, which is too many")
    return int(digits)


def _number(digits: str) -> float:
    if isinf(number := float(digits)):
        raise ValueError(f"{digits[:20]} is too large")
    return number


@dataclass(frozen=True, slots=True)
class ReasoningForm:
    """The marks around the reasoning of a family of models."""

    begins: tuple[str, ...]
    ends: tuple[str, ...]
    is_open: bool = False
    """True if an answer begins with reasoning even where no mark says so."""

    def is_open_behind(self, prompt: str) -> bool:
        """Says whether an answer to this prompt begins with reasoning; templates may end in either mark."""
        end = prompt.rstrip()
        if end.endswith(self.ends):
            return False
        return self.is_open or end.endswith(self.begins)


REASONING_FORMS = {
    "deepseek_r1": ReasoningForm(("<think>",), ("</think>",), is_open=True),
    "qwen3": ReasoningForm(("<think>",), ("</think>",)),
    "granite": ReasoningForm(
        ("Here is my thought process:", "Here's my thought process:"),
        ("Here is my response:", "Here's my response:"),
    ),
}
"""The forms by the names of vLLM's parsers."""


def reasoning_form(template: str) -> ReasoningForm | None:
    """Returns the form that a chat template teaches; None where it teaches none.

    DeepSeek-R1's first template has the end's mark alone, by which it cuts the reasoning of earlier answers.
    """
    if any(mark in template for mark in REASONING_FORMS["qwen3"].ends):
        return REASONING_FORMS["qwen3"]
    return REASONING_FORMS["granite"] if "thought process" in template else None


class TaggedReasoning:
    """Takes an answer as it comes; text between the marks is reasoning, and text after them is content.

    Reasoning is at the beginning of an answer or nowhere: marks that come later are part of the content.
    """

    def __init__(self, form: ReasoningForm, *, is_open: bool) -> None:
        self._form, self._is_open = form, is_open
        self._held, self._read = "", self._beginning

    def push(self, text: str) -> ParsedText:
        self._held += text
        return self._read()

    def flush(self) -> ParsedText:
        held, self._held = self._held, ""
        is_inside = self._read == self._inside or (self._is_open and self._read == self._beginning)
        return ParsedText(reasoning=held) if is_inside else ParsedText(held)

    def _beginning(self) -> ParsedText:
        begun = self._held.lstrip()
        mark = next((mark for mark in self._form.begins if begun.startswith(mark)), None)
        if mark is not None:
            self._held = begun[len(mark) :]
        elif any(mark.startswith(begun) for mark in self._form.begins):
            return ParsedText()
        self._read = self._inside if self._is_open or mark is not None else self._behind
        return self._read()

    def _inside(self) -> ParsedText:
        ended = split_at_mark(self._held, self._form.ends)
        if ended is None:
            reasoning, self._held = split_before_mark(self._held, self._form.ends)
            return ParsedText(reasoning=reasoning)
        reasoning, _, self._held = ended
        self._read = self._behind
        return ParsedText(reasoning=reasoning).followed_by(self._behind())

    def _behind(self) -> ParsedText:
        content, self._held = self._held, ""
        return ParsedText(content)


class ReasoningTokens:
    """Counts the tokens of the reasoning, where each of its marks is one token: `begin` and `end`.

    The marks themselves do not count. Blanks may stand before the first one, of which `bytes_of` tells.
    """

    def __init__(self, begin: int, end: int, bytes_of: Callable[[int], bytes], *, is_open: bool) -> None:
        self._begin, self._end, self._bytes_of = begin, end, bytes_of
        self._is_first, self._is_inside = True, is_open
        self.number = 0

    def push(self, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            if self._is_first and token_id == self._begin:
                self._is_first, self._is_inside, self.number = False, True, 0
                continue
            self._is_first = self._is_first and not self._bytes_of(token_id).strip()
            if token_id == self._end:
                self._is_first = self._is_inside = False
            self.number += self._is_inside


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


def call_form(template: str) -> CallForm | None:
    """Returns the form that a chat template teaches; None if it teaches no form with marks."""
    return next((form for mark, form in _CALL_FORMS.items() if mark in template), None)


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


_CALL_FORMS = {
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


NO_PARSER = "none"
"""The name by which a recipe asks for answers as they are."""


@dataclass(frozen=True, slots=True)
class OutputParsing:
    """Defines how the answers to one request are parsed; each choice has a parser of its own."""

    parser: Callable[[], OutputParser]
    counter: Callable[[], ReasoningTokens] | None = None
    """Counts the tokens of the reasoning; None where they cannot be told from others."""
    needs_special_tokens: bool = False
    """True if the marks are special tokens, which have no text unless it is asked for."""


def choose_parsing(
    template: str, parser: str | None, prompt: str, tools: Tools | None, tokenizer: Tokenizer | None
) -> OutputParsing | None:
    """Returns how an answer to a prompt is parsed; None if all of it is content.

    `parser` is the recipe's `serving.reasoning_parser`, and None leaves that to the template. `tools` are
    those that may be called; None stands for none.
    """
    form = REASONING_FORMS.get(parser) if parser else reasoning_form(template)
    is_open = form is not None and form.is_open_behind(prompt)
    calls, marks = (None, ()) if tools is None else _calls(template, tools)
    if form is None and calls is None:
        return None
    thinking = partial(TaggedReasoning, form, is_open=is_open) if form else None
    parsers = [parse for parse in (thinking, calls) if parse]
    marks = (*marks, *(form.begins + form.ends if form else ()))
    return OutputParsing(
        partial(InTurn, *parsers) if len(parsers) > 1 else parsers[0],
        _counter(form, tokenizer, is_open=is_open) if form and tokenizer else None,
        tokenizer is not None and any(_is_special(tokenizer, mark) for mark in marks),
    )


def _calls(template: str, tools: Tools) -> tuple[Callable[[], OutputParser], tuple[str, ...]]:
    """Returns how a parser of calls is made, and the marks that it looks for."""
    form = call_form(template)
    if form is None:
        return partial(BareCalls, tools), ()
    return partial(TaggedCalls, form, tools), (form.begin, form.end, *form.frame)


def _counter(
    form: ReasoningForm, tokenizer: Tokenizer, *, is_open: bool
) -> Callable[[], ReasoningTokens] | None:
    begin, end = tokenizer.id_of(form.begins[0]), tokenizer.id_of(form.ends[0])
    if begin is None or end is None:
        return None
    return partial(ReasoningTokens, begin, end, tokenizer.bytes_of, is_open=is_open)


def _is_special(tokenizer: Tokenizer, mark: str) -> bool:
    token_id = tokenizer.id_of(mark)
    return token_id is not None and not tokenizer.bytes_of(token_id)
