"""Connections of clients that are slow to say what they want."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
import uvicorn

from trtspec.openai.connection import Connection

HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


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


async def answers(sent: list[bytes]) -> list[bytes]:
    """What comes after each piece that is sent; nothing where the server has hung up."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, http=Connection, lifespan="off", log_config=None, log_level="critical")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    heard = []
    for piece in sent:
        writer.write(piece)
        heard.append(await asyncio.wait_for(answer(reader), 10))
    writer.close()
    server.should_exit = True
    await serving
    return heard


@pytest.mark.parametrize("sent", [[b""], [HEAD[:-2]], [HEAD, HEAD[:-2]]])
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
