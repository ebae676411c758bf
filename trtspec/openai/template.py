"""The model's own chat template: messages in, the text of a prompt out.

Templates come with models from strangers, and messages from strangers' clients, so the template runs in
Jinja's sandbox, within bounds of time and size. What it may use is what transformers gives it
(`transformers.utils.chat_template_utils`, `_compile_jinja_template`).
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import threading
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trtspec.openai.errors import ApiError

_LONGEST = 16 << 20
_LONGEST_REPEATED = 1 << 20
_LARGEST_POWER = 64
_LIMIT_S = 5.0
# What an expression in a template can raise, RecursionError included.
_MISTAKES = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError)


class TooLarge(Exception):
    """The template makes more than it may, or takes longer."""


class ChatTemplate:
    """A template; `source` is Jinja, and `tokens` has the special tokens by their names (`bos_token`, …)."""

    def __init__(self, source: str, tokens: dict[str, str], limit_s: float = _LIMIT_S) -> None:
        environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
        self._template, self._tokens, self._limit_s = environment.from_string(source), tokens, limit_s
        self.source = source

    @classmethod
    def load(cls, folder: Path) -> ChatTemplate | None:
        """Reads the template of a tokenizer's folder; None where it has none.

        Of several with names it is the one that is named `default`. Raises ValueError for one that cannot be
        read.
        """
        file = folder / "tokenizer_config.json"
        settings = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        own, source = folder / "chat_template.jinja", settings.get("chat_template")
        if own.is_file():
            source = own.read_text(encoding="utf-8")
        if isinstance(source, list):
            source = {entry["name"]: entry["template"] for entry in source}.get("default")
        if not isinstance(source, str):
            return None
        try:
            return cls(source, _tokens(settings))
        except TemplateError as error:
            raise ValueError(f"its chat template cannot be read: {error}") from error

    async def render(
        self, messages: list[dict[str, Any]], tools: list[Any] | None, more: dict[str, Any]
    ) -> str:
        """Returns the prompt that lets the model answer; raises `ApiError` where the template refuses.

        It runs in a thread; when it takes too long, an exception is raised there.
        """
        values = {**more, **self._tokens, "messages": messages, "tools": tools, "documents": None}
        work = _Rendering(self._template, {**values, "add_generation_prompt": True})
        timer = asyncio.get_running_loop().call_later(self._limit_s, work.interrupt)
        try:
            return await asyncio.to_thread(work.run)
        except TooLarge:
            raise ApiError(400, "the chat template makes too much of these messages", "messages") from None
        except (TemplateError, *_MISTAKES) as error:
            message = f"the model's chat template refuses these messages: {error}"
            raise ApiError(400, message, "messages") from None
        finally:
            timer.cancel()


class _Rendering:
    """One use of a template, which another thread can interrupt."""

    def __init__(self, template: Any, values: dict[str, Any]) -> None:
        self._template, self._values = template, values
        self._lock, self._thread = threading.Lock(), 0

    def run(self) -> str:
        try:
            with self._lock:
                self._thread = threading.get_ident()
            pieces, size = [], 0
            for piece in self._template.generate(self._values):
                pieces.append(piece)
                size += len(piece)
                if size > _LONGEST:
                    raise TooLarge
            return "".join(pieces)
        finally:
            with self._lock:
                self._thread = 0

    def interrupt(self) -> None:
        with self._lock:
            if self._thread:
                thread, error = ctypes.c_ulong(self._thread), ctypes.py_object(TooLarge)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, error)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, without products and powers that fill the memory in one step."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and not (_is_small(left, 1 << 20) and _is_small(right, _LARGEST_POWER)):
            raise TooLarge
        for text, count in ((left, right), (right, left)):
            is_repeated = isinstance(text, (str, list, tuple)) and isinstance(count, int)
            if is_repeated and len(text) * count > _LONGEST_REPEATED:
                raise TooLarge
        return super().call_binop(context, operator, left, right)


class _Generation(Extension):
    """The tag `generation`, which marks what an assistant said for training, and does nothing here."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _is_small(value: Any, most: int) -> bool:
    return isinstance(value, (int, float)) and abs(value) <= most


def _tokens(settings: dict[str, Any]) -> dict[str, str]:
    """Returns the special tokens of `tokenizer_config.json`, each a string there or an object."""
    found = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"):
        token = settings.get(name)
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str):
            found[name] = content
    return found


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
