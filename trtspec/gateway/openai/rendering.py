"""`python -m trtspec.gateway.openai.rendering`: makes prompts from messages for another process.

Templates come with models from strangers, and messages from strangers' clients. Jinja's sandbox keeps a
template from the rest of the process; what it makes in memory and time only the kernel can bound, which ends
this process where either is too much. What a template may use is what transformers gives it
(`transformers.utils.chat_template_utils`, `_compile_jinja_template`).

Standard input and output have frames: four bytes of length, then the content. The first to come has a
`ChatTemplate` and the bounds, each other one the values of a prompt, in Python's `marshal`, which is plain
data; the answer to each of these is `PROMPT` and the text, or `REFUSAL` and what the template does.
"""

from __future__ import annotations

import json
import marshal
import resource
import signal
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

PROMPT, REFUSAL = b"+", b"-"
LENGTH = 4
"""The bytes of a frame's length, which are big-endian."""

_LONGEST = 16 << 20
# The errors that an expression in a template can raise, including RecursionError.
_MISTAKES = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError)


def main() -> None:
    first = _read()
    if first is None:
        return
    resource.setrlimit(resource.RLIMIT_AS, (first["memory"], first["memory"]))
    # Its default action ends the process, in the middle of whatever it does.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    template: Template | None = None
    while (frame := _read()) is not None:
        signal.setitimer(signal.ITIMER_REAL, first["limit_s"])
        refusal = b"cannot be read: "
        try:
            template = template or read(first["source"])
            refusal = b"refuses these messages: "
            answer = PROMPT + _prompt(template, {**frame, **first["tokens"]})
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
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
    return environment.from_string(source)


def _prompt(template: Template, values: Mapping[str, Any]) -> bytes:
    text = template.render({"documents": None, "add_generation_prompt": True, **values})
    if len(text) > _LONGEST:
        raise MemoryError
    return text.encode()


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


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, where Jinja's own filter would escape it for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


if __name__ == "__main__":
    try:
        main()
    except MemoryError:
        # There may be none to say anything with, and whoever waits sees that this is the end.
        sys.exit(1)
