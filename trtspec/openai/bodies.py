"""The bodies of requests, within bounds of size and time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from trtspec.openai.errors import ApiError

MAX_BODY = 16 << 20
"""The most bytes of one body, as many as the front of `trtspec deploy` takes."""

_HELD = 256 << 20
_SENDING_S = 60.0


class Bodies:
    """Reads bodies, and bounds how many bytes of them are held at once."""

    def __init__(self) -> None:
        self._held = 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """Yields the whole body of JSON, which counts as held until the block ends; raises `ApiError`."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise ApiError(415, "the body must be JSON: send the header Content-Type: application/json")
        said = request.headers.get("content-length", "0")
        self._check(int(said) if said.isdecimal() and len(said) < 20 else 0)
        body = bytearray()
        try:
            await asyncio.wait_for(self._fill(body, request), _SENDING_S)
            yield bytes(body)
        except asyncio.TimeoutError:
            raise ApiError(408, f"the body was not here after {_SENDING_S:g} s") from None
        finally:
            self._held -= len(body)

    async def _fill(self, body: bytearray, request: Request) -> None:
        async for chunk in request.stream():
            self._check(len(body) + len(chunk))
            body += chunk
            self._held += len(chunk)

    def _check(self, size: int) -> None:
        if size > MAX_BODY:
            raise ApiError(413, f"the body has more than {MAX_BODY} bytes")
        if self._held + size > _HELD:
            raise ApiError(503, "too many large bodies at once")
