"""The bodies of HTTP requests, within bounds of size, time and depth."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
from aiohttp import web

from trtspec.deploy.tritonserver_options import MAX_BODY

_HELD = 512 << 20
_SENDING_S = 60.0
# Triton's JSON reader calls itself for each bracket in a bracket; a million of them end the server.
_MAX_DEPTH = 1000
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1
_SLICE = 1 << 18


class BodyError(Exception):
    """A body that is refused; `status` is HTTP's."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


class Bodies:
    """Reads bodies, and bounds how many bytes of them are held at once."""

    def __init__(self) -> None:
        self._held = 0

    @asynccontextmanager
    async def read(self, request: web.BaseRequest) -> AsyncIterator[bytes]:
        """Yields the whole body, which counts as held until the block ends.

        Raises `BodyError` as soon as it is known that the body is too large (413), comes too slowly (408) or
        that too much is held (503).
        """
        self._check(request.content_length or 0)
        body = bytearray()
        size = 0
        try:
            if request.can_read_body:
                await asyncio.wait_for(self._fill(body, request), _SENDING_S)
            size, whole = len(body), bytes(body)
            body.clear()
            yield whole
        except asyncio.TimeoutError:
            raise BodyError(408, f"the body was not here after {_SENDING_S:g} s") from None
        finally:
            self._held -= size or len(body)
            # The traceback of an exception refers to the body until the next collection of garbage.
            body.clear()

    async def _fill(self, body: bytearray, request: web.BaseRequest) -> None:
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        async for chunk in request.content.iter_any():
            self._check(len(body) + len(chunk))
            body += chunk
            self._held += len(chunk)

    def _check(self, size: int) -> None:
        if size > MAX_BODY:
            raise BodyError(413, f"the body has more than {MAX_BODY} bytes")
        if self._held + size > _HELD:
            raise BodyError(503, "too many large bodies at once")


def is_deep(body: bytes) -> bool:
    """Says whether JSON may be nested so deeply that Triton would not survive it."""
    if body.count(b"[") + body.count(b"{") <= _MAX_DEPTH:
        return False
    plain = np.frombuffer(body.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
    quotes = depth = 0
    for begin in range(0, len(plain), _SLICE):
        piece = plain[begin : begin + _SLICE]
        before = quotes + np.cumsum(piece == ord('"'), dtype=np.int32)
        depths = depth + np.cumsum(_STEPS[piece] * (before % 2 == 0), dtype=np.int32)
        if depths.max() > _MAX_DEPTH:
            return True
        quotes, depth = int(before[-1]), int(depths[-1])
    return False


def with_field(body: bytes, name: str, value: str) -> bytes:
    """Returns a JSON object with one more field at its end; a body that is no object is returned as it is."""
    inside = body.rstrip()
    if not inside.endswith(b"}"):
        return body
    inside = inside[:-1].rstrip()
    comma = b"" if inside.endswith(b"{") else b","
    return inside + comma + json.dumps({name: value}).encode()[1:]
