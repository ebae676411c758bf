"""Connections to Triton, against a server that does what it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any

import pytest
import uvloop

from trtspec.gateway.openai.upstream import WireError, Wires

Act = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def request_of(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head + await reader.readexactly(size)


def run(act: Act, use: Callable[[Wires, str], Awaitable[Any]]) -> tuple[Any, int]:
    """What `use` returns of a server whose every connection does `act`, and how many connections it had."""
    count = 0

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        # Those that still run are cancelled at the end.
        with suppress(asyncio.CancelledError, ConnectionError):
            await act(reader, writer)
        writer.close()

    async def whole() -> Any:
        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        wires = Wires()
        port = server.sockets[0].getsockname()[1]
        try:
            return await asyncio.wait_for(use(wires, f"http://127.0.0.1:{port}"), 120)
        finally:
            wires.close()
            server.close()

    return uvloop.run(whole()), count


async def body_of(wires: Wires, url: str, body: bytes = b"{}") -> tuple[int, bytes]:
    async with wires.ask("POST", f"{url}/v2/x", body) as answer:
        return answer.status, b"".join([piece async for piece in answer.pieces()])


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        try:
            said = await request_of(reader)
        except asyncio.IncompleteReadError:
            return
        writer.write(CHUNKED)
        for part in (said[:7], said[7:]):
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await writer.drain()
        writer.write(b"0\r\n\r\n")


def test_a_connection_serves_one_request_after_another() -> None:
    async def use(wires: Wires, url: str) -> list[tuple[int, bytes]]:
        return [await body_of(wires, url, body) for body in (b"one", b"two")]

    (first, second), count = run(echo, use)
    assert first[0] == 200
    assert first[1].startswith(b"POST /v2/x HTTP/1.1\r\n")
    assert (first[1][-3:], second[1][-3:], count) == (b"one", b"two", 1)


def test_at_once_each_has_its_own() -> None:
    async def use(wires: Wires, url: str) -> list[tuple[int, bytes]]:
        return await asyncio.gather(*(body_of(wires, url, b"%d" % number) for number in range(5)))

    answers, count = run(echo, use)
    assert [body[-1:] for _, body in answers] == [b"0", b"1", b"2", b"3", b"4"]
    assert count == 5


def test_one_that_was_closed_while_nobody_used_it_is_replaced() -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async def use(wires: Wires, url: str) -> list[tuple[int, bytes]]:
        return [await body_of(wires, url) for _ in range(3)]

    assert run(once, use) == ([(200, b"ok")] * 3, 3)

    async def after_its_end(wires: Wires, url: str) -> list[tuple[int, bytes]]:
        first = await body_of(wires, url)
        while any(wire.is_free for (wire,) in filter(None, wires._free.values())):
            await asyncio.sleep(0)
        return [first, await body_of(wires, url)]

    assert run(once, after_its_end) == ([(200, b"ok")] * 2, 2)


def test_one_that_was_left_early_is_not_used_again() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(CHUNKED + b"2\r\nab\r\n")
        await reader.read()

    async def use(wires: Wires, url: str) -> list[bytes]:
        heard = []
        for _ in range(2):
            async with wires.ask("POST", f"{url}/v2/x", b"{}") as answer, aclosing(answer.pieces()) as pieces:
                heard.append(await anext(pieces))
        return heard

    assert run(endless, use) == ([b"ab", b"ab"], 2)


def test_one_whose_answer_nobody_read_is_not_used_again() -> None:
    """Reading has paused with the answer whole, and nobody would go on with it."""
    size = 3 << 20

    async def large(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await request_of(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + bytes(size))

    async def use(wires: Wires, url: str) -> int:
        async with wires.ask("POST", f"{url}/v2/x", b"{}") as answer:
            # As if the last of it had come with the piece that is too much.
            answer.data_received(bytes(size - answer._held))
            assert answer.is_over
        return len((await body_of(wires, url))[1])

    assert run(large, use) == (size, 2)


@pytest.mark.parametrize(
    "said",
    [b"", b"HTTP/1.1 200", CHUNKED + b"5\r\nab", CHUNKED + b"zz\r\n", b"no HTTP at all\r\n\r\n"],
)
def test_an_answer_that_is_not_whole_is_an_error(said: bytes) -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(said)

    with pytest.raises(WireError):
        run(cut, body_of)


def test_nobody_there_is_an_error() -> None:
    async def use(wires: Wires, _: str) -> tuple[int, bytes]:
        return await body_of(wires, "http://127.0.0.1:1")

    with pytest.raises(WireError):
        run(echo, use)


def test_a_slow_reader_makes_the_other_side_wait() -> None:
    size, sent = 64 << 20, 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        while sent < size:
            writer.write(bytes(1 << 20))
            await writer.drain()
            sent += 1 << 20

    async def use(wires: Wires, url: str) -> tuple[int, int]:
        async with wires.ask("POST", url, b"{}") as answer:
            before = -1
            while before != sent:
                before = sent
                await asyncio.sleep(0.2)
            return before, sum([len(piece) async for piece in answer.pieces()])

    (before, read), _ = run(flood, use)
    assert before < size // 2
    assert read == size
