"""Reads streams of server-sent events, and turns their failures into errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from time import perf_counter
from typing import Any

import aiohttp
import orjson
from yarl import URL

from trtspec.client.endpoint import AskError, Hear, TimedAnswer

_CONNECT_S = 10.0
_LOOK_S = 10.0
"""The seconds that a server has to say what it is."""
_KEEP_S = 2.0
"""The seconds that an idle connection is kept: uvicorn, which most servers use, closes it after five. A POST
on a connection that the server is closing fails, and is not repeated."""
_MOST_WORDS = 300
_BUSY = (429, 503)
_JSON = {"Content-Type": "application/json"}

Add = Callable[[TimedAnswer, dict[str, Any], float], None]
"""Adds an event, and the `perf_counter` at which it came, to the answer; raises `AskError`."""


class Streams:
    """Posts JSON to a server and yields what it streams; many at once, each on a connection that is kept.

    A request has `timeout_s` seconds for everything. `key` is sent as a bearer token.
    """

    def __init__(self, timeout_s: float, key: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = aiohttp.ClientTimeout(total=timeout_s, connect=_CONNECT_S)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_S)
        self._session = aiohttp.ClientSession(headers=headers, timeout=limits, connector=connector)

    async def ask(self, url: URL, body: Mapping[str, Any], add: Add, hear: Hear) -> TimedAnswer:
        """Returns the answer that `add` makes of the events; `hear` gets each piece of its text.

        Raises `AskError`.
        """
        answer = TimedAnswer(sent=perf_counter())
        async with aclosing(self.post(url, body, answer.sent)) as events:
            async for said, now in events:
                known = len(answer.text)
                try:
                    add(answer, said, now)
                except (AttributeError, KeyError, TypeError) as error:
                    problem = f"no event of this API: {said!r:.60}"
                    raise AskError("unreadable", problem, answer.sent) from error
                if piece := answer.text[known:]:
                    hear(piece)
        return answer

    async def post(
        self, url: URL, body: Mapping[str, Any], sent: float
    ) -> AsyncGenerator[tuple[Any, float], None]:
        """Yields each event's JSON with the `perf_counter` at which its last byte came; raises `AskError`.

        `sent` is when the request began, for errors.
        """
        try:
            content = orjson.dumps(body)
        except TypeError as error:
            raise AskError("rejected", "the text is not UTF-8", sent) from error
        async with _ask_errors(sent), self._session.post(url, data=content, headers=_JSON) as response:
            if (status := response.status) != 200:
                kind = "refused" if status in _BUSY else "rejected" if status < 500 else "failed"
                problem = f"{status}: {problem_of(await response.text(errors='replace'))}"
                raise AskError(kind, problem, sent)
            tail = b""
            async for chunk in response.content.iter_any():
                now = perf_counter()
                *events, tail = (tail + chunk).replace(b"\r\n", b"\n").split(b"\n\n")
                for event in events:
                    if (data := _data(event)) is not None:
                        yield _parsed(data, sent), now

    async def get(self, url: URL) -> dict[str, Any] | None:
        """Returns the JSON object at a URL, None if there is none.

        Raises `AskError` where nobody answers in ten seconds.
        """
        sent, limit = perf_counter(), aiohttp.ClientTimeout(total=_LOOK_S, connect=_CONNECT_S)
        async with _ask_errors(sent), self._session.get(url, timeout=limit) as response:
            body = await response.read()
            if response.status in (401, 403):
                raise AskError("rejected", f"{response.status}: an API key is required", sent)
            try:
                said = orjson.loads(body) if response.status == 200 else None
            except ValueError:
                return None
            return said if isinstance(said, dict) else None

    async def close(self) -> None:
        await self._session.close()


@asynccontextmanager
async def _ask_errors(sent: float) -> AsyncIterator[None]:
    """Turns what aiohttp raises into `AskError`."""
    try:
        yield
    except asyncio.TimeoutError as error:
        raise AskError("timed_out", str(error) or "no complete answer in time", sent) from error
    except aiohttp.ClientConnectorError as error:
        raise AskError("unreachable", str(error), sent) from error
    except (aiohttp.ClientError, ConnectionError) as error:
        raise AskError("broken_off", str(error) or type(error).__name__, sent) from error


def _data(event: bytes) -> bytes | None:
    """Returns the data of an event; None for comments, and for OpenAI's mark of the end."""
    lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
    data = b"\n".join(lines)
    return data if data and data != b"[DONE]" else None


def _parsed(data: bytes, sent: float) -> Any:
    try:
        return orjson.loads(data)
    except ValueError:
        raise AskError("unreadable", f"not JSON: {data[:60]!r}", sent) from None


def problem_of(text: str) -> str:
    """Returns the words of an error's body, in Triton's form or in OpenAI's."""
    try:
        said = orjson.loads(text)
        error = said.get("error", said.get("message", said.get("detail")))
        words = error.get("message") if isinstance(error, dict) else error
    except (ValueError, AttributeError):
        words = text
    return " ".join(str(words).split())[:_MOST_WORDS]
