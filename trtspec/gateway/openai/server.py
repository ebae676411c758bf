"""Runs the API's server: uvicorn with the application, on a socket that already listens.

Its connections limit the size and time of what clients send.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import uvicorn
import uvloop
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from trtspec.base.process_limits import allow_connections, give_back_large_blocks
from trtspec.gateway.client_bounds import (
    HEAD_S,
    MAX_HEAD,
    MOST_CONNECTIONS,
    READING_S,
    UNREAD_S,
    leave_unread,
)
from trtspec.gateway.openai.app import ModelText, make_app
from trtspec.gateway.openai.chat_template import ChatTemplate, Renderer
from trtspec.gateway.openai.control import follow
from trtspec.gateway.openai.errors import ApiError
from trtspec.gateway.openai.keys import Keys
from trtspec.gateway.openai.sampling_defaults import read_defaults
from trtspec.gateway.openai.settings import ApiSettings
from trtspec.gateway.openai.upstream import Upstream
from trtspec.gateway.refusals import Refusal, Refusals
from trtspec.models.tokenizer import BROKEN
from trtspec.serving.tokenizer import Tokenizer
from trtspec.serving.triton.agreement import NAMING

# The parser reads whole pieces: this many bytes of requests may wait behind the running one.
_PIECE = 1 << 12
# The overhead of a header besides its bytes, as HTTP/2 counts it (RFC 9113, 6.5.2).
_EACH_HEADER = 32


class Connection(HttpToolsProtocol):
    """Reads one request at a time, and hangs up on a client that sends too long a head or waits too long.

    A connection beyond the first `most_connections` is answered 503 at once.

    Nothing is read while a request waits for the answer to the one before it, so a client that sends many
    without reading the answers fills its own buffers. A head, or the trailers behind a body, of more than
    `MAX_HEAD` bytes is refused with 431.

    A request that is answered before its body has come is the last of its connection, and the rest is not
    read. It also hangs up when no request is at work and the whole head of one is not there within `head_s`
    seconds. What else comes in that time does not prolong it. A client that still takes in its last answer is
    waited for.

    It also hangs up where more of an answer than the transport holds waits for the client for `reading_s`
    seconds; whoever makes the answer is told, like of any client that has left.
    """

    transport: _Leaving  # type: ignore[assignment]
    head_s, reading_s, most_connections = HEAD_S, READING_S, MOST_CONNECTIONS
    _clock: asyncio.TimerHandle | None = None
    _unread: memoryview = memoryview(b"")
    _head, _stays = 0, False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = _Leaving(transport)
        super().connection_made(self.transport)  # type: ignore[arg-type]
        # Those without a complete answer, the running one first.
        self._owed = deque[RequestResponseCycle]()
        self.flow = _Flow(self, self.transport)
        self._wait()
        if len(self.connections) > self.most_connections:
            self._refuse(ApiError(503, "too many connections"))

    def data_received(self, data: bytes) -> None:
        self._unread = memoryview(data)
        self._parse()

    def read_on(self) -> None:
        """Parses what has arrived, and then what arrives, if no request waits."""
        if not self.pipeline and not self.transport.is_closing():
            FlowControl.resume_reading(self.flow)
            self._parse()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._head += _EACH_HEADER

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        # An answer that does not wait for the whole body ends the connection.
        self._stays, self.cycle.keep_alive = self.cycle.keep_alive, False
        self.transport.unread = True
        self._owed.append(self.cycle)
        self._head = 0
        self._wait()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._head = 0

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.cycle.keep_alive = self._stays
        self.transport.unread = False
        self._head = 0

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._owed.popleft()
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
        # Uvicorn tells only the last one, which may wait behind the one at work.
        for cycle in self._owed:
            cycle.disconnected = True
            cycle.message_event.set()

    def refused(self, status: int) -> None:
        """Called for each request or connection refused here, which the application does not see."""

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError(400, msg))

    def _parse(self) -> None:
        while self._unread and not self.flow.read_paused and not self.transport.is_closing():
            piece, self._unread = self._unread[:_PIECE], self._unread[_PIECE:]
            self._head += len(piece)
            super().data_received(bytes(piece))
            if self._head > MAX_HEAD:
                self._refuse(ApiError(431, f"the head of the request has more than {MAX_HEAD} bytes"))

    def _refuse(self, error: ApiError) -> None:
        """Answers the arriving request, or the connection, with an error, and hangs up."""
        if self.transport.is_closing():
            return
        self.refused(error.status)
        if self._owed and self._owed[0].response_started:
            # In the middle of another answer it would be taken for a part of that.
            self.transport.abort()
            return
        body = error.body()
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Connection": "close",
        }
        lines = [f"{name}: {value}\r\n" for name, value in {**headers, **error.headers}.items()]
        self.transport.write(STATUS_LINE[error.status] + "".join([*lines, "\r\n"]).encode() + body)
        self.transport.unread = True
        self.transport.close()

    def _wait(self) -> None:
        """Starts the timeout for the client's next action, if there is one."""
        self._stop()
        if not self._owed:
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


class _Leaving:
    """A transport that, when it is closed, lets a client whose body is `unread` take in its answer first."""

    unread = False
    _is_left = False

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._is_left or self._transport.is_closing()

    def close(self) -> None:
        if not self.unread or self.is_closing():
            self._transport.close()
            return
        leave_unread(self._transport)
        self._is_left = True
        asyncio.get_running_loop().call_later(UNREAD_S, self._transport.close)


class _Flow(FlowControl):
    """Lets the connection look, before it reads on, at what it has not parsed yet."""

    def __init__(self, connection: Connection, transport: _Leaving) -> None:
        super().__init__(transport)  # type: ignore[arg-type]
        self._connection = connection

    def resume_reading(self) -> None:
        # Uvicorn asks for it in the middle of passing to the next request.
        if self.read_paused:
            self._connection.loop.call_soon(self._connection.read_on)


_LAST_RESPONSES_S = 5


def load(settings: ApiSettings) -> tuple[ModelText, Keys]:
    """Reads the files that the settings name; raises OSError, ValueError and `TokenizerError`.

    With an unreadable chat template it answers no chats, but serves everything else.
    """
    texts, folder = ModelText(card=settings.card), settings.tokenizer
    if folder is not None:
        sampling = read_defaults(folder) if settings.card.has_own_sampling else {}
        texts = replace(texts, tokenizer=Tokenizer.load(folder), sampling=sampling)
        try:
            texts = replace(texts, template=ChatTemplate.load(folder))
        except BROKEN as error:
            texts = replace(texts, problem=f"; its chat template cannot be read: {error}")
    return texts, Keys.load(settings.keys) if settings.keys else Keys([])


def serve(listener: socket.socket, settings: ApiSettings, texts: ModelText, keys: Keys) -> None:
    """Serves until SIGINT or SIGTERM, or with no `url` in the settings until standard input ends."""
    Connection.most_connections = allow_connections(MOST_CONNECTIONS)
    give_back_large_blocks()
    uvloop.run(_serve(listener, settings, texts, keys))


async def _serve(listener: socket.socket, settings: ApiSettings, texts: ModelText, keys: Keys) -> None:
    refusals = Refusals("openai", settings.model_name)
    upstream = Upstream(settings.model_name, refusals, os.environ.get(NAMING, ""))
    renderer = Renderer(texts.template) if texts.template else None
    config = uvicorn.Config(
        make_app(upstream, texts, renderer, keys, refusals, settings.max_requests, settings.origins),
        lifespan="off",
        ws="none",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        http=counting(refusals),
        timeout_graceful_shutdown=_LAST_RESPONSES_S,
    )
    server = _Server(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.end)
    following = None
    if settings.url is None:
        following = loop.create_task(follow(upstream, server.end))
    else:
        upstream.url = settings.url.rstrip("/")
    try:
        if renderer:
            await renderer.start()
        await server.serve(sockets=[listener])
    finally:
        if renderer:
            await renderer.close()
        if following:
            following.cancel()
        upstream.close()


def counting(refusals: Refusals) -> type[Connection]:
    """Returns connections that count what they refuse themselves, which the application does not see."""

    class Counting(Connection):
        def refused(self, status: int) -> None:
            refusals.add(Refusal.TOO_MANY_CONNECTIONS if status == 503 else Refusal.INVALID_REQUEST)

    return Counting


class _Server(uvicorn.Server):
    """Uvicorn, which leaves signals alone."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    def end(self) -> None:
        """Ends the server, once what runs has ended or some seconds have passed."""
        self.should_exit = True
