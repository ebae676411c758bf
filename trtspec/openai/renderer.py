"""Messages to prompts, by the model's chat template, in a process that may be lost."""

from __future__ import annotations

import asyncio
import marshal
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from typing import Any

from trtspec.openai.errors import ApiError
from trtspec.openai.rendering import LENGTH, REFUSAL
from trtspec.openai.template import ChatTemplate

_LIMIT_S = 5.0
# Several times what the longest body takes.
_MEMORY = 512 << 20


class Renderer:
    """Renders one `template`; it is made and used on one asyncio loop.

    The process (`trtspec.openai.rendering`) renders one prompt at a time, each in a fraction of a
    millisecond. It ends by itself where a template takes longer than `limit_s` or more than its memory, and
    the next prompt begins another one.
    """

    def __init__(self, template: ChatTemplate, limit_s: float = _LIMIT_S) -> None:
        self.source = template.source
        first = {"source": template.source, "tokens": template.tokens, "limit_s": limit_s, "memory": _MEMORY}
        self._first = marshal.dumps(first)
        self._process: Process | None = None
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Starts the process, so that the first prompt does not wait for that."""
        async with self._turn:
            await self._started()

    async def close(self) -> None:
        """Ends the process, and what it renders."""
        if self._process:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def render(
        self, messages: list[dict[str, Any]], tools: list[Any] | None, more: dict[str, Any]
    ) -> str:
        """Returns the prompt that lets the model answer; raises `ApiError` where the template refuses."""
        values = {**more, "messages": messages, "tools": tools}
        frame = marshal.dumps(values)
        async with self._turn:
            process = await self._started()
            try:
                answer = await _asked(process, frame)
            except (asyncio.IncompleteReadError, ConnectionError):
                await process.wait()
                raise ApiError(
                    400, "the chat template makes too much of these messages", "messages"
                ) from None
            except BaseException:
                # Nobody waits for the answer any more, and the next one must not get it.
                await self.close()
                raise
        text = answer[1:].decode()
        if answer[:1] == REFUSAL:
            raise ApiError(400, f"the model's chat template {text}", "messages")
        return text

    async def _started(self) -> Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "trtspec.openai.rendering"),
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
