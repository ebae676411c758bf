"""Defines the lines by which `trtspec deploy` tells its API server the state of the model, and checks that it
lives.

They come on standard input, a Unix socket, on which the server answers a question with an empty line.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Callable
from contextlib import suppress

from trtspec.base.errors import UnavailableError
from trtspec.gateway.openai.upstream import Upstream
from trtspec.pipeline.containers.program import find_program
from trtspec.pipeline.containers.state import find_state

_LOOK_S = 2.0

ASKED = b'{"asked": true}\n'
"""The line that asks the server whether it lives."""


def opened(url: str) -> bytes:
    """Returns the line that says where the model takes requests."""
    return _line({"url": url})


def shut(state: str) -> bytes:
    """Returns the line that says why the model takes no requests, such as "stopping"."""
    return _line({"state": state})


def left(container: str) -> bytes:
    """Returns the line after which the server runs alone, until the container with this id is removed."""
    return _line({"container": container})


async def follow(upstream: Upstream, end: Callable[[], None]) -> None:
    """Follows the lines, and calls `end` when there are no more, or the container is gone."""
    channel = socket.fromfd(sys.stdin.fileno(), socket.AF_UNIX, socket.SOCK_STREAM)
    lines, answers = await asyncio.open_unix_connection(sock=channel)
    container = ""
    # A deploy that was killed may have left an answer unread.
    with suppress(ConnectionError):
        async for line in lines:
            said = json.loads(line)
            container = said.get("container", container)
            if "url" in said:
                upstream.url = said["url"]
            elif "state" in said:
                upstream.url, upstream.state = None, said["state"]
            elif "asked" in said:
                answers.write(b"\n")
    while container:
        is_there = await asyncio.to_thread(_is_there, container)
        if not is_there:
            break
        await asyncio.sleep(_LOOK_S)
    end()


def _is_there(container: str) -> bool:
    try:
        return find_state(find_program(), container) is not None
    except UnavailableError:
        # A daemon that does not answer leaves its containers running.
        return True


def _line(said: dict[str, str]) -> bytes:
    return json.dumps(said).encode() + b"\n"
