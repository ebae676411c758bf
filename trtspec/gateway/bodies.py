"""Reads the bodies of HTTP requests, within limits of size and time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from trtspec.gateway.client_bounds import MAX_BODY, SENDING_S
from trtspec.serving.awaiting import within


def leave_unread(transport: asyncio.Transport) -> None:
    """Reads no more of a body, and ends what is sent to its client, who has `UNREAD_S` to take it in.

    The caller closes the transport then. Closed at once, it would be reset for a client that still sends, who
    would not see why (RFC 9112, 9.6).
    """
    if not transport.is_closing():
        transport.pause_reading()
        transport.write_eof()


class BodyError(Exception):
    """Raised for a refused body; `status` is HTTP's."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


class Bodies:
    """Reads bodies, and holds at most `held` bytes of them at once."""

    def __init__(self, held: int) -> None:
        self._most, self._held = held, 0

    @asynccontextmanager
    async def read(self, chunks: AsyncGenerator[bytes, None], said: int) -> AsyncIterator[bytes]:
        """Yields the whole body, which counts as held until the block ends.

        `said` is the request's Content-Length, or 0 without one. Raises `BodyError` as soon as the body is
        too large (413) or too slow (408), or too many bytes are held (503).
        """
        self._check(said, said)
        body = bytearray()
        size = 0
        try:
            try:
                await within(SENDING_S, self._fill(body, chunks))
            except asyncio.TimeoutError:
                raise BodyError(408, f"the body did not arrive within {SENDING_S:g} s") from None
            size, whole = len(body), bytes(body)
            body.clear()
            yield whole
        finally:
            self._held -= size or len(body)
            # The traceback of an exception refers to the body until the next collection of garbage.
            body.clear()

    async def _fill(self, body: bytearray, chunks: AsyncGenerator[bytes, None]) -> None:
        async with aclosing(chunks):
            async for chunk in chunks:
                self._check(len(body) + len(chunk), len(chunk))
                body += chunk
                self._held += len(chunk)

    def _check(self, size: int, more: int) -> None:
        """Raises `BodyError` for a body of this size, or where `more` bytes of it cannot be held."""
        if size > MAX_BODY:
            raise BodyError(413, f"the body has more than {MAX_BODY} bytes")
        if self._held + more > self._most:
            raise BodyError(503, "too many large bodies at once")
