"""Limits on clients that both HTTP servers of this machine enforce, and the reading of bodies within them.

The servers are the front of `deploy` and OpenAI's API.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from trtspec.serving.awaiting import within

MAX_BODY = 16 << 20
"""The most bytes of one body, which is more text than any model reads."""

MAX_HEAD = 64 << 10
"""The most bytes of the head of one request, or of the trailers behind its body."""

SHORT_BODY = 1 << 16
"""Bodies of at most so many bytes are read and examined on the loop, since that takes next to no time."""

MOST_CONNECTIONS = 4096

HEAD_S = 30.0
"""The seconds that a client has for the head of a request."""

SENDING_S = 60.0
"""The seconds that a client has for the body."""

UNREAD_S = 1.0
"""The seconds that a client has to take in the answer to a body that is not read to its end."""

READING_S = 60.0
"""The seconds that a client has to make room for more of an answer that is being made."""

RETRY_S = 1
"""After how many seconds a client that found no place may try again."""

LEFT_S = 0.1
"""The seconds before the model is told that a client has left, so that this does not overtake its request."""


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
