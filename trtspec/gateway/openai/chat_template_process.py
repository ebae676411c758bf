"""`python -m trtspec.gateway.openai.chat_template_process`: makes prompts from messages for another process.

Templates come with models from strangers, and messages from strangers' clients. Jinja's sandbox keeps a
template from the rest of the process; what it makes in memory and time only the kernel can bound, which ends
this process where either is too much. What a template may use is what transformers gives it
(`transformers.utils.chat_template_utils`, `_compile_jinja_template`).

Standard input and output have frames: four bytes of length, then the content. The first to come has a
`ChatTemplate` and the bounds, each other one the values of a prompt, in Python's `marshal`, which is plain
data; the answer to each of these is `PROMPT` and the text, or `REFUSAL`, the field and what is wrong.
"""

from __future__ import annotations

import json
import marshal
import re
import resource
import signal
import sys
from collections.abc import Mapping
from datetime import datetime
from functools import cache, lru_cache, partial
from itertools import product
from operator import itemgetter
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

PROMPT, REFUSAL = b"+", b"-"
LENGTH = 4
"""The bytes of a frame's length, which are big-endian."""

_LONGEST = 16 << 20
_AS_SENT, _JOINED, _LISTED = "as sent", "joined", "listed"
# What Python writes of null and of the numbers' dictionary, and JSON of a list that a template does not read.
_RAW = re.compile(r"None|'\d{12}':|[\"']text[\"']: ?[\"']\d{12}")
# The errors that an expression in a template can raise, including RecursionError.
_MISTAKES = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError)


def main() -> None:
    first = _read()
    if first is None:
        return
    resource.setrlimit(resource.RLIMIT_AS, (first["memory"], first["memory"]))
    # Its default action ends the process, in the middle of whatever it does.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    usual, tool_use = first["source"], first["tool_use"]
    prompter = cache(lambda source: Prompter(read(source), first["tokens"]))
    while (frame := _read()) is not None:
        signal.setitimer(signal.ITIMER_REAL, first["timeout_s"])
        refusal = b"messages the model's chat template cannot be read: "
        try:
            made = prompter(usual if frame["tools"] is None or tool_use is None else tool_use)
            refusal = b"messages the model's chat template refuses these messages: "
            answer = made.answer(frame)
        except (TemplateError, *_MISTAKES) as error:
            answer = REFUSAL + refusal + str(error).encode(errors="replace")
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout.buffer.write(len(answer).to_bytes(LENGTH, "big") + answer)
        sys.stdout.buffer.flush()


def read(source: str) -> Template:
    """Returns the template of a source; raises `TemplateError`."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, loopcontrols],
        # Otherwise constants would be computed here, even for messages that do not use them.
        optimized=False,
    )
    # JSON as it is, where Jinja's own filter would escape it for HTML.
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    environment.globals.update(raise_exception=_refuse, strftime_now=lambda to: datetime.now().strftime(to))
    return environment.from_string(source)


class Prompter:
    """Makes prompts by one template, of messages in the first form in which it leaves nothing out.

    Arguments of calls are parsed, or text if it joins them to text. Empty content beside calls is null, or ""
    if it writes what it gets. Lists of texts stay, or are joined by line ends if it reads none, as in vLLM.
    """

    def __init__(self, template: Template, tokens: Mapping[str, str]) -> None:
        self._template, self._tokens = template, tokens
        self._form = lru_cache(64)(self._found)

    def answer(self, values: Mapping[str, Any]) -> bytes:
        """Returns the prompt of a chat, or a field that it cannot have; raises what the template raises."""
        fields: dict[str, str] = {}
        messages = _numbered(values["messages"], "messages", fields)
        alike = {**values, "messages": messages, "tools": values["tools"] and values["tools"][:1]}
        form, lost = self._form(marshal.dumps(alike, 2), tuple(fields.items()))
        if lost:
            return REFUSAL + f"{lost} {lost} is left out by the model's chat template; change it".encode()
        return PROMPT + self._rendered(values, *form).encode()

    def _found(self, alike: bytes, fields: tuple[tuple[str, str], ...]) -> tuple[Any, str]:
        """Returns the form for a chat of numbers, and the first of their `fields` that its prompt lacks."""
        values, tried = marshal.loads(alike), []  # noqa: S302 (of `answer`)
        ways = (True, False) if any("tool_calls" in message for message in values["messages"]) else (False,)
        has_lists = any(isinstance(message["content"], list) for message in values["messages"])
        for form in product(ways, ways, (_AS_SENT, _JOINED, _LISTED) if has_lists else (_JOINED, _LISTED)):
            try:
                text = self._rendered(values, *form)
            except (TemplateError, *_MISTAKES):
                text = ""
            lost = next((field for number, field in fields if number not in text), "")
            # Null beside calls hides why a template refuses them in every form.
            rank = (0 if text else 1 + form[1], lost != "", len(_RAW.findall(text)))
            tried.append((rank, form, text and lost))
            if not any(tried[-1][0]):
                break
        return min(tried, key=itemgetter(0))[1:]

    def _rendered(self, values: Mapping[str, Any], is_parsed: bool, has_null: bool, texts: str) -> str:
        messages = []
        for message in values["messages"]:
            content, calls = message["content"], message.get("tool_calls", ())
            if isinstance(content, list) and texts != _AS_SENT:
                content = "\n".join(part["text"] for part in content)
            if content and texts == _LISTED:
                content = [{"type": "text", "text": content}]
            messages.append({**message, "content": content or (None if calls and has_null else "")})
            if calls and is_parsed:
                messages[-1]["tool_calls"] = list(map(_parsed, calls))
        usual = {"documents": None, "add_generation_prompt": True}
        text = self._template.render({**usual, **values, "messages": messages, **self._tokens})
        if len(text) > _LONGEST:
            raise MemoryError
        return text


def _parsed(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}


def _numbered(value: Any, path: str, fields: dict[str, str]) -> Any:
    """Returns a part of messages with a number for each text that a prompt must have; `fields` gets its path.

    Names and reasoning may be left out: most templates do so with the reasoning of earlier answers.
    """
    if isinstance(value, list):
        return [_numbered(one, f"{path}[{place}]", fields) for place, one in enumerate(value)]
    if isinstance(value, dict):
        made = {key: _numbered(one, f"{path}.{key}", fields) for key, one in value.items()}
        if function := value.get("function"):
            # Kimi K2's template writes the ids of calls, which have the names in them.
            made["id"] = value["id"].replace(f"{function['name']}:", f"{made['function']['name']}:")
        return made
    key = path.rpartition(".")[2]
    if key in ("role", "type", "id", "tool_call_id") or not value or value.strip() in ("", "{}"):
        return value
    if key not in ("content", "text", "arguments") and not path.endswith("function.name"):
        return "a"
    fields[number := str(10**11 + len(fields))] = path
    return json.dumps({number: number}) if key == "arguments" else number


def _read() -> dict[str, Any] | None:
    """Returns the content of the next frame; None at the end of standard input."""
    head = sys.stdin.buffer.read(LENGTH)
    if len(head) < LENGTH:
        return None
    content = sys.stdin.buffer.read(int.from_bytes(head, "big"))
    values: dict[str, Any] = marshal.loads(content)  # noqa: S302 (from the process that started this one)
    return values


class _Generation(Extension):
    """The tag `generation`, which marks what an assistant said for training, and does nothing here."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


if __name__ == "__main__":
    try:
        main()
    except MemoryError:
        # There may be none to say anything with, and whoever waits sees that this is the end.
        sys.exit(1)
