"""Connections of clients that are slow to say what they want."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from trtspec.openai.connection import Connection

HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
WITH_BODY = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def app(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.sleep(0.5)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def answer(reader: asyncio.StreamReader) -> bytes:
    said = b""
    try:
        while not said.endswith(b"ok") and (more := await reader.read(4096)):
            said += more
    except ConnectionError:
        pass
    return said


@asynccontextmanager
async def connected(app: Any, http: type[Connection] = Connection) -> AsyncIterator[Streams]:
    """A connection to a server of an application."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, http=http, lifespan="off", log_config=None, log_level="critical")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    reader, writer = await asyncio.open_connection(*listener.getsockname(), limit=1 << 12)
    try:
        yield reader, writer
    finally:
        writer.close()
        server.should_exit = True
        await serving


async def answers(sent: list[bytes]) -> list[bytes]:
    """What comes after each piece that is sent; nothing where the server has hung up."""
    heard = []
    async with connected(app) as (reader, writer):
        for piece in sent:
            writer.write(piece)
            heard.append(await asyncio.wait_for(answer(reader), 10))
    return heard


@pytest.mark.parametrize(
    "sent",
    [[b""], [HEAD[:-2]], [HEAD, HEAD[:-2]], [HEAD, b"\r\n"], [WITH_BODY, b"x"], [HEAD + HEAD[:-2], b"\r"]],
)
def test_who_does_not_come_to_the_end_of_a_head_is_hung_up_on(
    sent: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "head_s", 0.2)
    *before, last = asyncio.run(answers(sent))

    assert all(said.endswith(b"ok") for said in before)
    assert last == b""


def test_an_answer_may_take_longer_than_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "head_s", 0.2)
    assert all(said.endswith(b"ok") for said in asyncio.run(answers([HEAD, HEAD])))


def test_an_answer_may_be_read_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "head_s", 0.2)
    body = bytes(32 << 20)
    looks = 0

    class Counted(Connection):
        def _look(self, unsent: int) -> None:
            nonlocal looks
            looks += 1
            super()._look(unsent)

    async def large(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def read() -> int:
        async with connected(large, Counted) as (reader, writer):
            writer.write(HEAD)
            await reader.readuntil(b"\r\n\r\n")
            size = 0
            for look in (1, 2, 3):
                size += len(await reader.readexactly(4 << 20))
                while looks < look:
                    await asyncio.sleep(0.01)
            return size + len(await reader.readexactly(len(body) - size))

    assert asyncio.run(asyncio.wait_for(read(), 30)) == len(body)


async def endless(scope: Any, receive: Any, send: Any) -> None:
    """Answers until the client has left."""

    async def tell() -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": True})
            await asyncio.sleep(0)

    telling = asyncio.create_task(tell())
    while (await receive())["type"] != "http.disconnect":
        pass
    telling.cancel()


def test_who_does_not_read_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "reading_s", 0.2)

    async def run() -> None:
        has_left = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await endless(scope, receive, send)
            has_left.set()

        async with connected(app) as (_, writer):
            writer.write(HEAD)
            await asyncio.wait_for(has_left.wait(), 10)

    asyncio.run(run())


def test_who_reads_again_gets_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "reading_s", 0.5)

    async def run() -> None:
        paused = asyncio.Event()

        class Noticed(Connection):
            def pause_writing(self) -> None:
                super().pause_writing()
                paused.set()

        begin = time.monotonic()
        async with connected(endless, Noticed) as (reader, writer):
            writer.write(HEAD)
            await asyncio.wait_for(paused.wait(), 10)
            while time.monotonic() - begin < 1.5:
                await reader.readexactly(1 << 20)

    asyncio.run(run())
