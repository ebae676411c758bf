"""A client's connection: uvicorn's, which does not wait for ever for the head of a request."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from trtspec.client_bounds import HEAD_S


class Connection(HttpToolsProtocol):
    """Hangs up when a head is not there `head_s` seconds after it, or the connection, has begun."""

    head_s = HEAD_S
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._wait()

    def on_headers_complete(self) -> None:
        self._stop()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._waiting is None:
            self._waiting = self.loop.call_later(self.head_s, self.transport.abort)

    def _stop(self) -> None:
        if self._waiting:
            self._waiting.cancel()
            self._waiting = None
