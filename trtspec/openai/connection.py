"""A client's connection: uvicorn's, which does not wait for ever for the client."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from trtspec.client_bounds import HEAD_S, READING_S


class Connection(HttpToolsProtocol):
    """Hangs up when no request is at work and the whole head of one is not there within `head_s` seconds.

    What else comes in that time does not prolong it, such as the rest of a body that was answered before it
    was whole. A client that still takes in its last answer is waited for.

    It also hangs up where more of an answer than the transport holds waits for the client for `reading_s`
    seconds; whoever makes the answer is told, like of any client that has left.
    """

    head_s, reading_s = HEAD_S, READING_S
    _clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._wait()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _wait(self) -> None:
        """Begins to wait for what the client has to do next, if that is anything."""
        self._stop()
        # The cycle is that of the last request whose head has come.
        if self.cycle is None or self.cycle.response_complete:
            unsent = self.transport.get_write_buffer_size()
            self._clock = self.loop.call_later(self.head_s, self._look, unsent)
        elif self.flow.write_paused:
            self._clock = self.loop.call_later(self.reading_s, self.transport.abort)

    def _look(self, unsent: int) -> None:
        if self.transport.get_write_buffer_size() < unsent:
            self._wait()
        else:
            self.transport.abort()

    def _stop(self) -> None:
        if self._clock:
            self._clock.cancel()
            self._clock = None
