"""The public ports of HTTP, gRPC and metrics of a server on this machine, in front of Triton's private ports.

Triton's HTTP alone is not safe: one large body ends the server, and so does one with deeply nested JSON. It
also answers some errors with status 200, and it notices that a client has left only when it sends something.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import uuid
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from functools import partial
from typing import Any
from urllib.parse import unquote

import numpy as np
import uvloop
from aiohttp import (
    ClientError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    TCPConnector,
    web,
)
from aiohttp.http import HttpProcessingError
from multidict import CIMultiDict
from yarl import URL

from trtspec.base.process_limits import allow_connections, give_back_large_blocks
from trtspec.gateway.client_bounds import (
    HEAD_S,
    LEFT_S,
    MOST_CONNECTIONS,
    READING_S,
    RETRY_S,
    SHORT_BODY,
    UNREAD_S,
    Bodies,
    BodyError,
    leave_unread,
)
from trtspec.gateway.origins import Origins
from trtspec.gateway.ports import LOOPBACK, Ports
from trtspec.gateway.refusals import OF_BODIES, Refusal, Refusals, while_shut
from trtspec.gateway.triton.grpc_port import GrpcPort
from trtspec.serving.triton.agreement import ENDED, HEADER, ID, LEFT, NOT_UNICODE, REQUEST, tells_end

_IN_PARTS = b"generate expects model to produce exactly 1 response"
# Errors of the model begin with their status: see `trtspec.serving.triton.agreement`.
_STATUS = re.compile(rb'((?:data: )?\{)"error":"(\d{3}) ')
# Triton reports an internal error for a body that is not JSON, or has values of another type. Each such
# message of its parser has one of these words (`triton/common/triton_json.h`).
_NO_JSON = re.compile(rb"JSON|attempt to |Unable to parse")
# Triton's JSON parser is recursive: a million nested brackets end the server.
_MAX_DEPTH = 1000
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1
_SLICE = 1 << 18
# zlib's windows by Content-Encoding. Some clients leave out the head that `deflate` has (RFC 9110, 8.4.1.2).
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_PIECE = 1 << 20
# One thread: whoever sends such bodies takes no more than one processor from all else.
_INFLATING = ThreadPoolExecutor(1, "trtspec-inflate")
_NOT_CODED = "the body does not match its Content-Encoding"


async def inflated(chunks: AsyncGenerator[bytes, None], coding: str) -> AsyncGenerator[bytes, None]:
    """Yields a body without its Content-Encoding, in pieces of at most 1 MiB that a thread makes.

    Raises `BodyError` for another coding than gzip and deflate, and for a body that is not in its coding.
    """
    if coding not in _WINDOWS:
        raise BodyError(415, "the Content-Encoding of a body is gzip, deflate or none")
    loop, inflater = asyncio.get_running_loop(), None
    async with aclosing(chunks):
        try:
            async for rest in chunks:
                if inflater is None:
                    is_bare = coding == "deflate" and rest[0] & 0xF != zlib.DEFLATED
                    inflater = zlib.decompressobj(-zlib.MAX_WBITS if is_bare else _WINDOWS[coding])
                while rest:
                    yield await loop.run_in_executor(_INFLATING, inflater.decompress, rest, _PIECE)
                    rest = inflater.unconsumed_tail
            if inflater:
                # All input was taken, so that what is left is a few bytes.
                yield inflater.flush()
        except zlib.error:
            raise BodyError(400, _NOT_CODED) from None
    if inflater and (not inflater.eof or inflater.unused_data):
        raise BodyError(400, _NOT_CODED)


def is_deep(body: bytes) -> bool:
    """Says whether JSON may be nested so deeply that Triton crashes."""
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
    """Returns a JSON object with one more field at its end. A body that is no object stays as it is."""
    inside = body.rstrip()
    if not inside.endswith(b"}"):
        return body
    inside = inside[:-1].rstrip()
    comma = b"" if inside.endswith(b"{") else b","
    return inside + comma + json.dumps({name: value}).encode()[1:]


def error(status: int, message: str) -> web.Response:
    """Returns an error in Triton's form, with `Retry-After` for the status 503."""
    response = web.Response(status=status, body=error_json(message), content_type="application/json")
    if status == 503:
        response.headers["Retry-After"] = str(RETRY_S)
    return response


def error_json(message: str) -> bytes:
    return json.dumps({"error": message}).encode()


def without_status(piece: bytes) -> bytes:
    """Returns a piece of a stream without the status in an error: the stream's own was sent before."""
    return _STATUS.sub(rb'\1"error":"', piece) if b'"error":"' in piece else piece


def is_from_model(body: bytes) -> bool:
    """Says whether an error comes from the model, which counts its errors itself."""
    return _STATUS.match(body) is not None or NOT_UNICODE.encode() in body


def corrected(status: int, headers: Iterable[tuple[str, str]], body: bytes) -> web.Response:
    """Returns a complete response of Triton's with the HTTP status that fits its text."""
    if found := _STATUS.match(body):
        return error(int(found[2]), json.loads(body[len(found[1]) - 1 :])["error"].partition(" ")[2])
    if status == 200 and body.startswith(b'{"error"'):
        if _IN_PARTS in body:
            why = "stream is true, or num_return_sequences above 1"
            return error(400, f"{why}: the answer comes in parts, so use generate_stream")
        status = 500
    if status == 500 and _NO_JSON.search(body):
        status = 400
    elif status != 200 and tells_end(body.decode(errors="replace")):
        return error(503, ENDED)
    response = web.Response(status=status, body=body, headers=CIMultiDict(headers))
    if status == 503:
        response.headers["Retry-After"] = str(RETRY_S)
    return response


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


_CLOSED = re.compile(r"/v2/(\w*sharedmemory|repository|logging|trace)\b|/v2/models/.*/trace/")
_ALIVE = "/v2/health/live"
_READY = re.compile(r"/v2/health/ready|/v2/models/[^/]+(/versions/\d+)?/ready")
# The paths of Triton's HTTP server that are read, and those that are asked (`src/http_server.cc`).
_READ = re.compile(r"/v2(/health/(live|ready)|/models/[^/]+(/versions/\d+)?(/(ready|config|stats))?)?")
_ASKED = re.compile(r"/v2/models/[^/]+(/versions/\d+)?/(infer|generate|generate_stream)")
_GENERATE = re.compile(r"(/v2/models/[^/]+(?:/versions/\d+)?)/generate(_stream)?")
# Headers of one connection (RFC 9110, 7.6.1), or of the encoding and length of a body.
_NOT_FORWARDED = {
    *("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
    *("accept-encoding", "content-encoding", "content-length", "expect", "host"),
}
_FORM = "application/x-www-form-urlencoded"
_MOST_HELD = 512 << 20
_IDLE_S = 75.0
_UNUSED_S = 1.0
_ENDING_S = 1.0


class Front:
    """Listens from `start` to `close`, and answers 503 except from `open` to `shut`.

    Other threads call these four. The front has its own thread with an event loop.
    """

    def __init__(
        self, origins: Origins, ports: Ports, model_name: str, naming: str, api: URL | None = None
    ) -> None:
        """`origins` has the address to listen on, and `ports` are the public ports.

        `naming` is the secret with which the names of requests begin. `api` is the address of OpenAI's API,
        if there is one; it has the secret too.
        """
        self._origins, self._ports, self._naming = origins, ports, naming
        # In JSON this matches only a key: inside a string the quotation marks would have backslashes.
        self._named = re.compile(rf'"{REQUEST}":\s*"({re.escape(naming)}\w{{1,64}})"'.encode())
        self._refusals = Refusals("triton", model_name)
        self._metrics = MetricsPort(self._refusals, api / METRICS_PATH[1:] if api else None)
        self._grpc = GrpcPort(origins.host, ports.grpc, self._refusals)
        self._triton: URL | None = None
        self._state: str | None = "starting"
        self._is_alive = True
        self._bodies, self._notes = Bodies(_MOST_HELD), set[asyncio.Task[None]]()
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="trtspec-front", daemon=True)

    def start(self) -> None:
        """Begins to listen; raises `OSError` if it cannot."""
        give_back_large_blocks()
        self._thread.start()
        self._wait(self._start())

    def open(self, ports: Ports) -> None:
        """Passes requests from now on to Triton, on these ports of the loopback."""
        self._metrics.triton = URL(f"http://{LOOPBACK}:{ports.metrics}{METRICS_PATH}")
        self._wait(self._grpc.open(ports.grpc))
        self._triton, self._state, self._is_alive = URL(f"http://{LOOPBACK}:{ports.http}"), None, True

    def shut(self, state: str, *, is_alive: bool = True) -> None:
        """Refuses new requests from now on; running ones go on.

        `state` is the reason, such as "starting" or "stopping". With `is_alive` the front still reports that
        the server is alive, and its metrics.
        """
        self._state, self._is_alive = state, is_alive
        self._grpc.shut(state, is_alive=is_alive)
        if not is_alive:
            self._metrics.triton = None

    def close(self) -> None:
        self._wait(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # The methods below run on the loop.

    async def _start(self) -> None:
        self._session = ClientSession(
            # At its end Triton waits ten seconds for unused connections.
            connector=TCPConnector(limit=0, keepalive_timeout=_UNUSED_S),
            timeout=ClientTimeout(total=None, sock_connect=5),
            cookie_jar=DummyCookieJar(),
            auto_decompress=False,
        )
        self._most = allow_connections(MOST_CONNECTIONS)
        self._servers, self._listeners = list[Server](), list[asyncio.AbstractServer]()
        count = partial(self._refusals.add, Refusal.INVALID_REQUEST)
        for port, handle, refused in (
            (self._ports.http, self._handle, count),
            (self._ports.metrics, self._handle_metrics, lambda: None),
        ):
            # When a client leaves, aiohttp cancels its handler, and with it the request to Triton.
            server = Server(handle, refused, access_log=None, keepalive_timeout=_IDLE_S)
            accept = partial(self._accept, server)
            listener = await self._loop.create_server(accept, self._origins.host, port, backlog=1024)
            self._listeners.append(listener)
            self._servers.append(server)
        await self._grpc.start()

    async def _close(self) -> None:
        for listener in self._listeners:
            listener.close()
        await self._grpc.close()
        for server in self._servers:
            await server.shutdown(_ENDING_S)
        await self._session.close()

    def _accept(self, server: Server) -> asyncio.BaseProtocol:
        if sum(len(server.connections) for server in self._servers) >= self._most:
            self._refusals.add(Refusal.TOO_MANY_CONNECTIONS)
            return _Full()
        return server()

    async def _handle_metrics(self, request: web.BaseRequest) -> web.StreamResponse:
        if problem := self._origins.problem(request.headers.get("Host"), request.headers.get("Origin")):
            return error(403, problem)
        return await self._metrics.answer(request, self._session)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path, headers = unquote(request.path), request.headers
        if problem := self._origins.problem(headers.get("Host"), headers.get("Origin")):
            return self._refuse(request, Refusal.UNAUTHORIZED, 403, problem)
        if problem := self._origins.type_problem(headers.get("Content-Type", "")):
            return self._refuse(request, Refusal.INVALID_REQUEST, 415, problem)
        if not path.startswith("/"):
            return self._refuse(request, Refusal.INVALID_REQUEST, 400, "the request has no path")
        if methods := _other_methods(request.method, path):
            message = f"this path is asked with {methods}"
            refusal = self._refuse(request, Refusal.INVALID_REQUEST, 405, message)
            refusal.headers["Allow"] = methods
            return refusal
        if path == _ALIVE and self._is_alive and (self._state or self._triton is None):
            return web.Response()
        if _CLOSED.match(path):
            return self._refuse(request, Refusal.UNAUTHORIZED, 403, "this API is closed")
        if self._state or self._triton is None:
            why = while_shut(self._state or "")
            refusal = self._refuse(request, why, 503, f"the server is {self._state}")
            # A client that connects again may reach another server of the same name.
            refusal.force_close()
            return refusal
        try:
            async with self._bodies.read(_body(request), request.content_length or 0) as body:
                return await self._answer(request, self._triton, path, body)
        except BodyError as refused:
            reason = OF_BODIES.get(refused.status, Refusal.INVALID_REQUEST)
            return self._refuse(request, reason, refused.status, str(refused))
        except web.RequestPayloadError:
            message = "the body does not match its Transfer-Encoding"
            return self._refuse(request, Refusal.INVALID_REQUEST, 400, message)
        except ConnectionError:
            # A write to a client that has just left raises an error that is a `ClientError` too, as those of
            # the connection to Triton are. But these are no `ConnectionError`.
            return error(400, "the client has left")
        except (ClientError, asyncio.TimeoutError):
            return self._refuse(request, Refusal.NOT_READY, 503, "the server has ended")

    def _refuse(self, request: web.BaseRequest, why: Refusal, status: int, message: str) -> web.Response:
        """Returns an error of the front, and counts it unless the request is only a look, such as a probe."""
        if request.method == "POST":
            self._refusals.add(why)
        return error(status, message)

    async def _answer(
        self, request: web.BaseRequest, triton: URL, path: str, body: bytes
    ) -> web.StreamResponse:
        if await asyncio.to_thread(is_deep, body) if len(body) > SHORT_BODY else is_deep(body):
            message = "the JSON is nested too deeply"
            return self._refuse(request, Refusal.INVALID_REQUEST, 400, message)
        # Triton itself has no HEAD.
        generate, is_head = _GENERATE.fullmatch(path), request.method == "HEAD"
        # OpenAI's API has named its request itself.
        named = self._named.search(body) if generate else None
        name = named[1].decode() if named else f"{self._naming}{uuid.uuid4().hex}"
        try:
            async with self._session.request(
                "GET" if is_head else request.method,
                # The path as it came: `join` would accept a host in it, and could change what `_CLOSED` saw.
                URL(f"{triton.origin()}{request.rel_url.raw_path_qs}", encoded=True),
                data=_named(request, body, None if named else name) if generate else body or None,
                headers=_forwarded(request.headers),
                skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
                allow_redirects=False,
            ) as answer:
                if _READY.fullmatch(path) and answer.status != 200:
                    return error(503, "not ready")
                if answer.status != 200 or is_head or (generate and not generate[2]):
                    content = await answer.read()
                    response = corrected(answer.status, _forwarded(answer.headers), content)
                    if generate and answer.status != 200 and not is_from_model(content):
                        self._count(response.status)
                    return response
                return await _streamed(request, answer)
        except asyncio.CancelledError:
            if generate:
                note = self._loop.create_task(
                    self._report_left(triton.with_path(f"{generate[1]}/generate"), name)
                )
                self._notes.add(note)
                note.add_done_callback(self._notes.discard)
            raise

    def _count(self, status: int) -> None:
        """Counts an error of Triton itself, for a request that the model has not seen."""
        if status == 503:
            self._refusals.add(Refusal.NOT_READY)
        elif status < 500:
            self._refusals.add(Refusal.INVALID_REQUEST)

    async def _report_left(self, url: URL, name: str) -> None:
        await asyncio.sleep(LEFT_S)
        with suppress(ClientError):
            async with self._session.post(url, json={"text_input": "", LEFT: name}):
                pass


def _other_methods(method: str, path: str) -> str | None:
    """Returns the methods of the path where `method` is none of them; None for a path that is not known."""
    allowed = "GET, HEAD" if _READ.fullmatch(path) else "POST" if _ASKED.fullmatch(path) else method
    return None if method in allowed.split(", ") else allowed


def _body(request: web.BaseRequest) -> AsyncGenerator[bytes, None]:
    coding = request.headers.get("Content-Encoding", "").strip().lower()
    return _chunks(request) if coding in ("", "identity") else inflated(_chunks(request), coding)


async def _chunks(request: web.BaseRequest) -> AsyncGenerator[bytes, None]:
    if not request.can_read_body:
        return
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    async for chunk in request.content.iter_any():
        yield chunk


def _named(request: web.BaseRequest, body: bytes, name: str | None) -> bytes:
    """Returns the body with the request's `name`, if it is given, and with the id of its header."""
    body = with_field(body, REQUEST, name) if name else body
    given = request.headers.get(HEADER)
    return with_field(body, ID, given) if given and f'"{ID}"'.encode() not in body else body


async def _streamed(request: web.BaseRequest, answer: ClientResponse) -> web.StreamResponse:
    """Passes on each piece of Triton's response as it comes."""
    response = web.StreamResponse(status=answer.status, headers=_forwarded(answer.headers))
    response.content_length = answer.content_length
    await response.prepare(request)
    try:
        async for piece in answer.content.iter_any():
            await response.write(without_status(piece))
    except ClientError:
        if answer.content_type != "text/event-stream":
            # The response must not end properly, or the client would take it for complete.
            if request.transport:
                request.transport.abort()
            return response
        await response.write(b"data: " + error_json("the server has ended") + b"\n\n")
    await response.write_eof()
    return response


def _forwarded(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns the headers to pass on.

    The type of a form becomes JSON: Triton copies a form onto its stack, and curl calls any body a form.
    """
    return [
        (name, "application/json" if value.startswith(_FORM) else value)
        for name, value in headers.items()
        if name.lower() not in _NOT_FORWARDED
    ]


class _Full(asyncio.Protocol):
    """Refuses a connection above the limit."""

    # The transports of uvloop are none of asyncio's classes.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        body = error_json("too many connections")
        head = "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: application/json\r\n"
        transport.write(f"{head}Retry-After: 1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        transport.close()


METRICS_PATH = "/metrics"
_LATEST = ClientTimeout(total=5)
# The model updates the values of a histogram one by one, a hundred of them in some milliseconds.
_AGAIN_S, _MOST_LOOKS = 0.01, 5
_ENDS = re.compile(r'^(trtspec:\w+)_(?:count\{|bucket\{.*le="\+Inf").*\} (\S+)$', re.MULTILINE)
_API_LATEST = ClientTimeout(total=1)
# The session of the front does not decompress bodies.
_PLAIN = {"Accept-Encoding": "identity"}


class MetricsPort:
    """Answers with the metrics of `triton`, and with 503 without it, so that Prometheus sees it is down.

    `api` is the address of the refusals of OpenAI's API, None without such an API. While it does not answer,
    these are left out.
    """

    def __init__(self, refusals: Refusals, api: URL | None) -> None:
        self._refusals, self._api = refusals, api
        self.triton: URL | None = None

    async def answer(self, request: web.BaseRequest, session: ClientSession) -> web.Response:
        if request.path != METRICS_PATH:
            return web.Response(status=404, text=f"the metrics are at {METRICS_PATH}\n")
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, text="the metrics are read\n", headers={"Allow": "GET, HEAD"})
        if self.triton is None:
            return web.Response(status=503, text="the server is not running\n")
        try:
            for _ in range(_MOST_LOOKS):
                async with session.get(self.triton, timeout=_LATEST, headers=_PLAIN) as answer:
                    text, status = await answer.text(), answer.status
                    kind = answer.headers.get("Content-Type")
                if is_whole(text):
                    break
                await asyncio.sleep(_AGAIN_S)
        except (ClientError, asyncio.TimeoutError):
            return web.Response(status=503, text="the server does not answer\n")
        if status == 200:
            text += self._refusals.text() + await self._apis(session)
        return web.Response(status=status, text=text, headers={"Content-Type": kind or "text/plain"})

    async def _apis(self, session: ClientSession) -> str:
        """Returns the values from OpenAI's API without comments: the front's own values have them."""
        if self._api is None:
            return ""
        try:
            async with session.get(self._api, timeout=_API_LATEST, headers=_PLAIN) as answer:
                text = await answer.text() if answer.status == 200 else ""
        except (ClientError, asyncio.TimeoutError):
            return ""
        return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))


def is_whole(text: str) -> bool:
    """Says whether no histogram is in the middle of an update.

    Prometheus would derive wrong rates from a partial update: with only the small buckets updated, all later
    values would seem to be the slowest.
    """
    ends: dict[str, set[str]] = {}
    for name, value in _ENDS.findall(text):
        ends.setdefault(name, set()).add(value)
    return all(len(values) == 1 for values in ends.values())
