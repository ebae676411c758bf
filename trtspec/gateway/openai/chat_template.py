"""Renders messages as prompts by the model's chat template, in a separate process that may crash."""

from __future__ import annotations

import asyncio
import json
import marshal
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trtspec.gateway.openai.chat_template_process import LENGTH, REFUSAL
from trtspec.gateway.openai.errors import ApiError
from trtspec.models.tokenizer import chat_templates
from trtspec.serving.awaiting import within


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A template that makes the prompt of a chat, and the one for chats with tools."""

    source: str
    """The template in Jinja."""
    tokens: dict[str, str]
    """The special tokens by their names (`bos_token`, …)."""
    tool_use: str | None = None
    """The template for chats with tools; None where `source` is for those too."""

    @classmethod
    def load(cls, folder: Path) -> ChatTemplate | None:
        """Reads the templates of a tokenizer's folder; None if it has none.

        Of several named templates they are `default` and `tool_use`, as in transformers' `get_chat_template`.
        Raises `BROKEN` for files that cannot be read.
        """
        file = folder / "tokenizer_config.json"
        settings = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        named = chat_templates(folder, settings)
        source = named.get("default")
        return cls(source, _tokens(settings), named.get("tool_use")) if source else None

    def of(self, tools: list[Any] | None) -> str:
        """Returns the template for a chat with these tools; None stands for none."""
        return self.source if tools is None or self.tool_use is None else self.tool_use


def _tokens(settings: dict[str, Any]) -> dict[str, str]:
    """Returns the special tokens of `tokenizer_config.json`, each a string there or an object."""
    names = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
    given = {name: settings.get(name) for name in names}
    texts = {name: one.get("content") if isinstance(one, dict) else one for name, one in given.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


_TIMEOUT_S = 5.0
# Several times what the longest body takes.
_MEMORY = 512 << 20
# The seconds of an answer besides the rendering, which ends itself: starting a process takes a second.
_BESIDES_S = 10.0
# About the time to start another process: an answer that nobody waits for may take as long.
_RESTART_S = 0.3
# The most bytes of values that are rendered in a few milliseconds.
_SHORT = 256 << 10


class Renderer:
    """Renders a `template`, or the one for tools; it is made and used on one asyncio loop.

    Each process (`chat_template_process.py`) renders one prompt at a time. A usual one takes a fraction of a
    millisecond. Long messages, which take up to seconds, have a process of their own, and no others wait for
    them. A process ends by itself where a template takes longer than `timeout_s` or more than its memory, and
    the next prompt begins another one. One that is stopped, or hangs, is ended ten seconds later.
    """

    def __init__(self, template: ChatTemplate, timeout_s: float = _TIMEOUT_S) -> None:
        self.template = template
        first = {**asdict(template), "timeout_s": timeout_s, "memory": _MEMORY}
        self._short, self._long = (_Lane(marshal.dumps(first), timeout_s + _BESIDES_S) for _ in range(2))

    async def start(self) -> None:
        """Starts the process for short messages, so that the first prompt need not wait for it."""
        await self._short.start()

    async def close(self) -> None:
        """Ends the processes, and their renderings."""
        await self._short.close()
        await self._long.close()

    async def render(
        self, messages: list[dict[str, Any]], tools: list[Any] | None, more: dict[str, Any]
    ) -> str:
        """Returns the prompt; raises `ApiError` if the template refuses the messages, or loses some."""
        frame = marshal.dumps({**more, "messages": messages, "tools": tools})
        lane = self._short if len(frame) <= _SHORT else self._long
        try:
            answer = await lane.ask(frame)
        except asyncio.TimeoutError:
            raise ApiError(
                504, "the process that renders the chat template does not answer; try again"
            ) from None
        except (asyncio.IncompleteReadError, ConnectionError):
            problem = "the chat template makes too long a prompt of these messages"
            raise ApiError(400, problem, "messages") from None
        text = answer[1:].decode()
        if answer[:1] == REFUSAL:
            field, _, problem = text.partition(" ")
            raise ApiError(400, problem, field)
        return text


class _Lane:
    """A process that renders, which gets the `first` frame when it starts, and those who wait for it.

    An answer may take `longest_s` seconds.
    """

    def __init__(self, first: bytes, longest_s: float) -> None:
        self._first, self._longest_s = first, longest_s
        self._process: Process | None = None
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        async with self._turn:
            await self._started()

    async def close(self) -> None:
        if self._process:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def ask(self, frame: bytes) -> bytes:
        """Returns the answer to a frame.

        Raises IncompleteReadError or ConnectionError where the process ends, and asyncio's TimeoutError where
        it does not answer, and is ended.
        """
        async with self._turn:
            process = await self._started()
            asked = asyncio.ensure_future(_asked(process, frame))
            try:
                return await within(self._longest_s, asyncio.shield(asked))
            except (asyncio.IncompleteReadError, ConnectionError):
                await process.wait()
                raise
            except BaseException:
                # Nobody waits for this answer any more, and the next caller must not get it.
                try:
                    await within(_RESTART_S, asked)
                except BaseException:
                    await self.close()
                raise

    async def _started(self) -> Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "trtspec.gateway.openai.chat_template_process"),
                stdin=PIPE,
                stdout=PIPE,
                # Ctrl-C is not meant for it.
                start_new_session=True,
            )
            _write(self._process, self._first)
        return self._process


def _write(process: Process, frame: bytes) -> None:
    assert process.stdin
    process.stdin.write(len(frame).to_bytes(LENGTH, "big") + frame)


async def _asked(process: Process, frame: bytes) -> bytes:
    assert process.stdin
    assert process.stdout
    _write(process, frame)
    await process.stdin.drain()
    length = int.from_bytes(await process.stdout.readexactly(LENGTH), "big")
    return await process.stdout.readexactly(length)
