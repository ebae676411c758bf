"""A client's connection to the front: aiohttp's, with a line for what cannot be read.

aiohttp itself logs some kilobytes of trace for each such request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.http import HttpProcessingError

from trtspec.deploy.answers import error

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Server(web.Server):
    """Calls `refused` for each request whose head cannot be read, and answers it with 400."""

    def __init__(self, handler: Handler, refused: Callable[[], None], **options: Any) -> None:
        super().__init__(handler, handler_cancellation=True, **options)
        self._refused, self._options = refused, options

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, self._refused, loop=asyncio.get_running_loop(), **self._options)


class _Connection(web.RequestHandler):
    __slots__ = ("_refused",)

    def __init__(self, server: web.Server, refused: Callable[[], None], **options: Any) -> None:
        super().__init__(server, **options)
        self._refused = refused

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Returns the answer to what could not be answered; it ends the connection."""
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        self._refused()
        response = error(400, f"the request cannot be read: {exc.message.strip().partition(chr(10))[0]}")
        response.force_close()
        return response

    def log_exception(self, *args: Any, **options: Any) -> None:
        """Logs an error of the server; a body in another form than its head says is the client's."""
        if not isinstance(options.get("exc_info"), web.RequestPayloadError):
            super().log_exception(*args, **options)
