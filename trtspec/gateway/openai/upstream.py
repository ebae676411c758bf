"""Asks the model behind the API: Triton's HTTP, with its `generate_stream`.

It is Triton's own port or the front of `trtspec deploy`, on this machine or elsewhere.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import orjson

from trtspec.gateway.client_bounds import LEFT_S
from trtspec.gateway.openai.errors import ApiError, ShutError
from trtspec.gateway.openai.pieces import failure
from trtspec.gateway.openai.wire import Wire, WireError, Wires
from trtspec.gateway.refusals import Refusal, Refusals, while_shut
from trtspec.serving.awaiting import within
from trtspec.serving.triton.agreement import ENDED, LEFT, REQUEST

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
