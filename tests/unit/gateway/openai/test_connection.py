"""Connections of clients that are slow to say what they want, or say too much."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
import uvloop

from trtspec.gateway.client_bounds import MAX_HEAD
from trtspec.gateway.openai.server import Connection, counting
from trtspec.gateway.refusals import Refusals

HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
WITH_BODY = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def app(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.sleep(0.5)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def slow(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.sleep(1.0)
    await app(scope, receive, send)


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


async def answers(sent: list[bytes], by: Any = app) -> list[bytes]:
    """What comes after each piece that is sent; nothing where the server has hung up."""
    heard = []
    async with connected(by) as (reader, writer):
        for piece in sent:
            writer.write(piece)
            heard.append(await asyncio.wait_for(answer(reader), 120))
    return heard


@pytest.mark.parametrize(
    "sent",
    [[b""], [HEAD[:-2]], [HEAD, HEAD[:-2]], [HEAD, b"\r\n"], [WITH_BODY, b"x"], [HEAD + HEAD[:-2], b"\r"]],
)
def test_who_does_not_come_to_the_end_of_a_head_is_hung_up_on(
    sent: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "head_s", 0.2 if len(sent) == 1 else 1.0)
    *before, last = asyncio.run(answers(sent))

    assert all(said.endswith(b"ok") for said in before)
    assert last == b""


def test_an_answer_may_take_longer_than_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "head_s", 1.0)
    assert all(said.endswith(b"ok") for said in asyncio.run(answers([HEAD, HEAD], slow)))


def test_an_answer_may_be_read_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "head_s", 0.6)
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

    assert asyncio.run(asyncio.wait_for(read(), 300)) == len(body)


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
            await asyncio.wait_for(has_left.wait(), 120)

    asyncio.run(run())


def test_who_reads_again_gets_the_rest() -> None:
    paused, resumed = asyncio.Event(), asyncio.Event()
    clocks: list[asyncio.TimerHandle | None] = []

    class Noticed(Connection):
        def pause_writing(self) -> None:
            super().pause_writing()
            clocks.append(self._clock)
            paused.set()

        def resume_writing(self) -> None:
            super().resume_writing()
            resumed.set()

    async def run() -> None:
        async with connected(endless, Noticed) as (reader, writer):
            writer.write(HEAD)
            for _ in range(3):
                await paused.wait()
                paused.clear()
                resumed.clear()
                while not resumed.is_set():
                    await reader.readexactly(1 << 16)
        assert all(clock and clock.cancelled() for clock in clocks[:3])

    asyncio.run(asyncio.wait_for(run(), 300))


def test_who_does_not_wait_for_answers_is_not_read_any_further() -> None:
    """Each request has its answer, in the order in which they came."""
    number, most = 3000, 0
    lines: list[Connection] = []

    class Seen(Connection):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            lines.append(self)

    async def told(scope: Any, receive: Any, send: Any) -> None:
        nonlocal most
        listening = asyncio.create_task(receive())
        listening.add_done_callback(lambda _: None)
        await asyncio.sleep(0)
        most = max(most, len(lines[0].pipeline))
        body = scope["query_string"] + b"\n"
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def run() -> list[bytes]:
        async with connected(told, Seen) as (reader, writer):
            writer.write(b"".join(b"GET /?%d HTTP/1.1\r\n\r\n" % each for each in range(number)))
            heard: list[bytes] = []
            while len(heard) < number:
                line = await asyncio.wait_for(reader.readline(), 120)
                heard += [line.strip()] if line.strip().isdigit() else []
            return heard

    assert asyncio.run(run()) == [b"%d" % each for each in range(number)]
    # As many as are in the piece that was being parsed, not all that have come.
    assert 0 < most < 300


def test_bodies_of_requests_that_come_at_once_stay_whole() -> None:
    async def echo(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"%d\n" % (body == b"x" * 1_000_000)})

    async def run() -> list[bytes]:
        async with connected(echo) as (reader, writer):
            for _ in range(3):
                writer.write(WITH_BODY + b"x" * 1_000_000)
            heard: list[bytes] = []
            while len(heard) < 3:
                line = await asyncio.wait_for(reader.readline(), 120)
                heard += [line.strip()] if line.strip() in (b"0", b"1") else []
            return heard

    assert asyncio.run(run()) == [b"1"] * 3


def test_who_leaves_with_requests_in_line_has_left_the_one_at_work_too() -> None:
    async def run() -> None:
        has_left = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await endless(scope, receive, send)
            has_left.set()

        async with connected(app) as (reader, writer):
            writer.write(HEAD * 3)
            await reader.readuntil(b"\r\n\r\n")
            writer.close()
            await asyncio.wait_for(has_left.wait(), 120)

    asyncio.run(run())


CHUNKED = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n"
MUCH = b"a" * (MAX_HEAD + (1 << 13))


@pytest.mark.parametrize(
    "sent",
    [
        HEAD[:-2] + b"x: " + MUCH + b"\r\n\r\n",
        HEAD[:-2] + b"x: " + MUCH,
        HEAD[:-2] + b"x: y\r\n" * 10_000 + b"\r\n",
        b"GET /" + MUCH + b" HTTP/1.1\r\n\r\n",
        CHUNKED + b"x: " + MUCH + b"\r\n\r\n",
        CHUNKED[:-3] + b"1;" + MUCH,
    ],
    ids=["header", "endless header", "headers", "path", "trailer", "chunk"],
)
def test_a_head_that_is_too_large_is_refused(sent: bytes) -> None:
    async def patient(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive())["type"] == "http.request" and message["more_body"]:
            pass
        if message["type"] == "http.request":
            await app(scope, receive, send)

    async def run() -> bytes:
        async with connected(patient) as (reader, writer):
            writer.write(sent)
            return await asyncio.wait_for(reader.read(), 120)

    said = asyncio.run(run())
    assert said.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n"), said[:200]
    assert b'"type": "invalid_request_error"' in said


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\nno header\r\n\r\n", HEAD[:-2] + b"x: " + MUCH])
def test_a_head_that_the_application_does_not_see_is_counted(sent: bytes) -> None:
    refusals = Refusals("openai", "llm")

    async def run() -> bytes:
        async with connected(app, counting(refusals)) as (reader, writer):
            writer.write(HEAD)
            await answer(reader)
            writer.write(sent)
            return await reader.read()

    assert asyncio.run(run())[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 431")
    assert counted(refusals) == [
        'trtspec:front_refusals_total{api="openai",model="llm",reason="invalid_request"} 1'
    ]


def counted(refusals: Refusals) -> list[str]:
    return [line for line in refusals.text().splitlines() if "_total" in line and line.endswith("} 1")]


def test_a_connection_too_many_is_refused_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "most_connections", 1)
    refusals = Refusals("openai", "llm")

    async def run() -> tuple[bytes, bytes]:
        async with connected(app, counting(refusals)) as (reader, writer):
            late, other = await asyncio.open_connection(*writer.get_extra_info("peername"))
            said = await late.read()
            other.close()
            writer.write(HEAD)
            return said, await answer(reader)

    said, first = asyncio.run(run())
    assert said.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"Retry-After: 1\r\n" in said
    assert b'"type": "server_error"' in said
    assert first.endswith(b"ok")
    assert counted(refusals) == [
        'trtspec:front_refusals_total{api="openai",model="llm",reason="too_many_connections"} 1'
    ]


def test_a_head_may_be_large() -> None:
    large = HEAD[:-2] + b"x: " + b"a" * (MAX_HEAD - (1 << 13)) + b"\r\n\r\n"
    assert all(said.endswith(b"ok") for said in asyncio.run(answers([large, large])))


def test_no_refusal_is_written_into_another_answer() -> None:
    async def run() -> bytes:
        async with connected(endless) as (reader, writer):
            writer.write(HEAD)
            await reader.readuntil(b"\r\n\r\n")
            writer.write(HEAD[:-2] + b"x: " + MUCH)
            said = b""
            try:
                while more := await reader.read(1 << 20):
                    said += more
            except ConnectionError:
                pass
            return said

    assert b"431" not in asyncio.run(asyncio.wait_for(run(), 120))


def test_the_ports_are_tried_on_the_loop_that_production_runs() -> None:
    async def run() -> type:
        async with connected(endless) as (_, writer):
            assert not isinstance(writer.transport, asyncio.Transport)
            return type(asyncio.get_running_loop())

    assert asyncio.run(run()) is uvloop.Loop


async def refuses(scope: Any, receive: Any, send: Any) -> None:
    """Answers without a look at the body."""
    await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.mark.parametrize("head", [WITH_BODY, CHUNKED[:-6]])
def test_the_openai_gateway_refuses_a_request_without_waiting_for_its_body(head: bytes) -> None:
    async def run() -> bytes:
        async with connected(refuses) as (reader, writer):
            writer.write(head)
            return await asyncio.wait_for(reader.read(), 120)

    said = asyncio.run(run())
    assert said.startswith(b"HTTP/1.1 401 ")
    assert b"\r\nconnection: close\r\n" in said


@pytest.mark.parametrize("sent", [HEAD, CHUNKED + b"\r\n", WITH_BODY.replace(b"1000000", b"2") + b"{}"])
def test_a_refusal_of_a_request_that_is_whole_ends_no_connection(sent: bytes) -> None:
    async def run() -> None:
        async with connected(refuses) as (reader, writer):
            for _ in range(3):
                writer.write(sent)
                said = await asyncio.wait_for(answer(reader), 120)
                assert said.endswith(b"ok")
                assert b"connection: close" not in said

    asyncio.run(run())
