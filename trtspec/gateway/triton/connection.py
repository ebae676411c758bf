"""A client's connection to the front: aiohttp's, with one line for a malformed request, and time limits.

aiohttp itself logs a trace of some kilobytes for each malformed request, and waits for ever for a client that
does not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.http import HttpProcessingError

from trtspec.gateway.bodies import leave_unread
from trtspec.gateway.client_bounds import HEAD_S, READING_S, UNREAD_S
from trtspec.gateway.triton.bodies import error

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Server(web.Server):
    """Calls `refused` for each request with a malformed head, and answers it with 400.

    Bodies stay as they come: aiohttp would inflate them on the loop, and those that are refused too.
    """

    def __init__(self, handler: Handler, refused: Callable[[], None], **options: Any) -> None:
        options = {**options, "auto_decompress": False, "lingering_time": 0}
        super().__init__(partial(_answered, handler), handler_cancellation=True, **options)
        self._refused, self._options = refused, options

    def __call__(self) -> FrontConnection:
        return FrontConnection(self, self._refused, loop=asyncio.get_running_loop(), **self._options)


async def _answered(handler: Handler, request: web.BaseRequest) -> web.StreamResponse:
    """Returns the handler's answer, which ends the connection if the body of the request was not read."""
    assert isinstance(request.protocol, FrontConnection)
    request.protocol.head_received()
    response = await handler(request)
    if not request.content.is_eof():
        # No other request can be found on this connection.
        response.force_close()
    if request.method == "HEAD" and isinstance(response, web.Response) and not response.body:
        response.headers["Content-Length"] = "0"
    return response


class FrontConnection(web.RequestHandler):
    """Closes the connection of a client that sends no head in `HEAD_S`, or reads nothing in `READING_S`.

    Later heads have the time limit of an idle connection. Closing it cancels the handler of the request.
    """

    __slots__ = ("_clock", "_refused")
    _clock: asyncio.TimerHandle | None

    def __init__(self, server: web.Server, refused: Callable[[], None], **options: Any) -> None:
        super().__init__(server, **options)
        self._refused = refused

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._clock = self._loop.call_later(HEAD_S, self._hang_up)

    def head_received(self) -> None:
        """Ends the time limit of the first head."""
        if self._clock and not self.writing_paused:
            self._clock.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop()
        self._clock = self._loop.call_later(READING_S, self._hang_up)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _stop(self) -> None:
        if self._clock:
            self._clock.cancel()
            self._clock = None

    def _hang_up(self) -> None:
        if self.transport:
            self.transport.abort()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Sends what is left of a response. aiohttp closes the connection then, if the body was not read."""
        response, is_left = await super().finish_response(request, resp, start_time)
        if self.transport and not request.content.is_eof():
            leave_unread(self.transport)
            await asyncio.sleep(UNREAD_S)
        return response, is_left

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Returns the response to a malformed request or a failed handler, which ends the connection."""
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        self._refused()
        response = error(400, f"the request cannot be read: {exc.message.strip().partition(chr(10))[0]}")
        response.force_close()
        return response

    def log_exception(self, *args: Any, **options: Any) -> None:
        """Logs an error of the server. A body that does not match its head is an error of the client."""
        if not isinstance(options.get("exc_info"), web.RequestPayloadError):
            super().log_exception(*args, **options)
