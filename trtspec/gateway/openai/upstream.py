"""Asks the model behind the API: Triton's HTTP, with its `generate_stream`.

It is Triton's own port or the front of `trtspec deploy`, on this machine or elsewhere.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httptools
import orjson

from trtspec.gateway.client_bounds import LEFT_S
from trtspec.gateway.openai.errors import ApiError, ShutError
from trtspec.gateway.openai.model_output import failure
from trtspec.gateway.refusals import Refusal, Refusals, while_shut
from trtspec.serving.awaiting import within
from trtspec.serving.triton.agreement import ENDED, LEFT, REQUEST

_CONNECT_S = 5.0
# When Triton is told to stop, it waits ten seconds for idle connections.
_UNUSED_S = 1.0
# Beyond this many bytes a slow reader makes the model's side wait.
_MOST_HELD = 1 << 20


class WireError(Exception):
    """The other side cannot be reached, or hung up before its answer was whole."""


class Wire(asyncio.Protocol):
    """One connection, for `uses` requests until now, one after another.

    `status` is that of the answer, 0 until it has begun.
    """

    def __init__(self) -> None:
        self.is_lost, self._is_paused, self.uses = True, False, 0
        self._heard: asyncio.Future[None] | None = None
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.status, self.is_over, self._keeps = 0, False, False
        self._pieces: list[bytes] = []
        self._held = 0

    def send(self, request: bytes) -> None:
        """Begins the next request; raises `WireError` where the other side has closed meanwhile."""
        if self.is_lost or self._transport.is_closing():
            raise WireError
        self._begin()
        self.uses += 1
        self._transport.write(request)

    async def begun(self) -> None:
        """Returns when the answer has begun; raises `WireError`."""
        while not self.status:
            await self._wait()

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yields the body as it comes; raises `WireError` where it ends too early."""
        while True:
            if self._pieces:
                piece = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
                self._pieces, self._held = [], 0
                if self._is_paused:
                    self._is_paused = False
                    self._transport.resume_reading()
                yield piece
            elif self.is_over:
                return
            else:
                await self._wait()

    @property
    def is_free(self) -> bool:
        """Says whether another request can follow."""
        return self.is_over and self._keeps and not self.is_lost and not self._is_paused

    def close(self) -> None:
        if not self.is_lost:
            self._transport.abort()

    async def _wait(self) -> None:
        if self.is_lost:
            raise WireError
        self._heard = asyncio.get_running_loop().create_future()
        try:
            await self._heard
        finally:
            self._heard = None

    def _wake(self) -> None:
        if self._heard and not self._heard.done():
            self._heard.set_result(None)

    # What asyncio calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport, self.is_lost = transport, False

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()
        if self._held > _MOST_HELD and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, _: Exception | None) -> None:
        self.is_lost = True
        self._wake()

    # What httptools calls.

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)
        self._held += len(body)

    def on_message_complete(self) -> None:
        self.is_over, self._keeps = True, self._parser.should_keep_alive()


class Wires:
    """The connections; a free one is used again, and closed when nobody has used it for a second."""

    def __init__(self) -> None:
        self._free: dict[tuple[str, str], list[Wire]] = {}

    @asynccontextmanager
    async def ask(
        self, method: str, url: str, body: bytes = b"", headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> AsyncIterator[Wire]:
        """Yields the connection with the answer begun; leaving early ends it. Raises `WireError`.

        `headers` are names and values that are valid in HTTP.
        """
        where = urlsplit(url)
        head = f"{method} {where.path} HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Length: {len(body)}\r\n"
        more = b"".join(b"%b: %b\r\n" % header for header in headers)
        request = f"{head}Content-Type: application/json\r\n".encode() + more + b"\r\n" + body
        wire = await self._asked(where, request)
        try:
            yield wire
        finally:
            if wire.is_free:
                self._put(where, wire)
            else:
                wire.close()

    def close(self) -> None:
        for wires in self._free.values():
            for wire in wires:
                wire.close()

    async def _asked(self, where: SplitResult, request: bytes) -> Wire:
        free = self._free.get((where.scheme, where.netloc), [])
        while free:
            wire = free.pop()
            try:
                return await _begun(wire, request)
            except WireError:
                # It was closed at the other side while nobody used it.
                continue
        return await _begun(await _connected(where), request)

    def _put(self, where: SplitResult, wire: Wire) -> None:
        free = self._free.setdefault((where.scheme, where.netloc), [])
        free.append(wire)
        asyncio.get_running_loop().call_later(_UNUSED_S, self._drop, free, wire, wire.uses)

    @staticmethod
    def _drop(free: list[Wire], wire: Wire, uses: int) -> None:
        if wire in free and wire.uses == uses:
            free.remove(wire)
            wire.close()


async def _connected(where: SplitResult) -> Wire:
    is_safe = where.scheme == "https"
    port = where.port or (443 if is_safe else 80)
    wire = Wire()
    connecting = asyncio.get_running_loop().create_connection(
        lambda: wire, where.hostname or "", port, ssl=True if is_safe else None
    )
    try:
        await within(_CONNECT_S, connecting)
    except (OSError, asyncio.TimeoutError):
        raise WireError from None
    except asyncio.CancelledError:
        wire.close()
        raise
    return wire


async def _begun(wire: Wire, request: bytes) -> Wire:
    try:
        wire.send(request)
        await wire.begun()
    except BaseException:
        wire.close()
        raise
    return wire


_ANSWER_S = 5.0
_EVENT, _END = b"data:", b"\n\n"


class Upstream:
    """Asks one model at `url`, which may change; if it is None, `state` says why there is no model.

    It is made and used on one asyncio loop.
    """

    def __init__(self, model_name: str, refusals: Refusals, naming: str = "") -> None:
        """`naming` is the secret with which the model's names of requests begin; without it none has one."""
        self.model_name, self._refusals, self._naming = model_name, refusals, naming
        self.url: str | None = None
        self.state = "starting"
        self._notes = set[asyncio.Task[None]]()
        self._wires = Wires()

    def close(self) -> None:
        self._wires.close()

    async def is_ready(self) -> bool:
        """Says whether the model takes requests."""
        if self.url is None:
            return False
        paths = "/v2/health/ready", f"/v2/models/{self.model_name}/ready"
        return all([await self._status("GET", self.url + path) == 200 for path in paths])

    async def ask(
        self, inputs: dict[str, Any], headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> AsyncGenerator[list[dict[str, Any]], None]:
        """Yields the model's answers, those that came together in one list; `headers` go on to Triton.

        Raises `ApiError`. Closing the generator ends the request, whether the model has begun or not.
        """
        if self.url is None:
            self._refusals.add(while_shut(self.state))
            raise ShutError(self.state)
        name, url = f"{self._naming}{uuid.uuid4().hex}", f"{self.url}/v2/models/{self.model_name}"
        named = {**inputs, REQUEST: name} if self._naming else inputs
        body, is_over, has_begun = orjson.dumps(named), False, False
        try:
            async with self._wires.ask("POST", f"{url}/generate_stream", body, headers) as answer:
                has_begun = True
                if answer.status != 200:
                    is_over = True
                    error = failure(*await _said(answer))
                    if error.message == ENDED:
                        self._refusals.add(Refusal.NOT_READY)
                    raise error
                async with aclosing(_events(answer)) as batches:
                    async for events in batches:
                        yield events
                is_over = True
        except WireError:
            is_over = True
            if not has_begun:
                self._refusals.add(Refusal.NOT_READY)
            raise ApiError(503, "the server has ended, or does not answer") from None
        finally:
            if not is_over and self._naming:
                note = asyncio.get_running_loop().create_task(self._tell_left(f"{url}/generate", name))
                self._notes.add(note)
                note.add_done_callback(self._notes.discard)

    async def _tell_left(self, url: str, name: str) -> None:
        await asyncio.sleep(LEFT_S)
        await self._status("POST", url, orjson.dumps({"text_input": "", LEFT: name}))

    async def _status(self, method: str, url: str, body: bytes = b"") -> int:
        """Returns the HTTP status of an answer, 0 where there is none in five seconds."""
        try:
            return await within(_ANSWER_S, self._asked(method, url, body))
        except (WireError, asyncio.TimeoutError):
            return 0

    async def _asked(self, method: str, url: str, body: bytes) -> int:
        async with self._wires.ask(method, url, body) as answer:
            async for _ in answer.pieces():
                pass
            return answer.status


async def _events(answer: Wire) -> AsyncGenerator[list[dict[str, Any]], None]:
    """Yields the complete events of a stream."""
    left = b""
    async for data in answer.pieces():
        *whole, left = (left + data).split(_END)
        if events := [orjson.loads(event.removeprefix(_EVENT)) for event in whole if event]:
            yield events


async def _said(answer: Wire) -> tuple[str, int]:
    """Returns the text of an error, and its HTTP status."""
    body = b"".join([piece async for piece in answer.pieces()])
    text = body.decode(errors="replace").removeprefix("data:")
    try:
        message = orjson.loads(text)["error"]
    except (ValueError, TypeError, KeyError):
        message = f"Triton says {answer.status}: {text[:200]}"
    return str(message), answer.status
