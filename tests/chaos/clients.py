"""Clients of both wires in one process, many at once."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import grpc
import numpy as np
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

from tests.chaos.shots import MEGABYTE, Shot
from trtspec.client.grpc import BY_NAME, WIRE

_PIECE = b"x" * MEGABYTE


@dataclass
class Answer:
    """What a client heard until it heard no more; times are of the monotonic clock.

    `error` is None for an answer that is whole. `is_over` is False where the client gave up waiting, or hung
    up; `num_ends` counts the responses that said of themselves that they were the last.
    """

    sent_at: float = 0.0
    done_at: float = 0.0
    text: str = ""
    error: str | None = None
    status: int = 0
    num_ends: int = 0
    is_over: bool = False
    events: list[dict[str, Any]] = field(default_factory=list)

    def hear(self, values: dict[str, Any]) -> None:
        if "error" in values:
            self.error = str(values["error"])
        self.text += values.get("text_output", "")
        self.num_ends += bool(values.get("finish_reason"))


class Clients:
    """Sends shots; to be used as a context manager, on one loop."""

    def __init__(self, http: str, grpc_url: str, model: str) -> None:
        self._url, self._grpc_url, self._model = f"{http}/v2/models/{model}", grpc_url, model

    async def __aenter__(self) -> Clients:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
        )
        # A channel that waits longer and longer would miss that the server is back.
        again = [("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 500)]
        self._grpc = triton.InferenceServerClient(self._grpc_url, channel_args=again)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        await self._grpc.close()

    async def send(self, shot: Shot, patience_s: float) -> Answer:
        """Waits for the whole answer, until the client leaves, or until its patience ends."""
        answer = Answer(sent_at=time.monotonic())
        talk = self._over_http if shot.wire == "http" else self._over_grpc
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(talk(shot, answer), patience_s if shot.leaves_s is None else shot.leaves_s)
            answer.is_over = True
        answer.done_at = time.monotonic()
        return answer

    async def _over_http(self, shot: Shot, answer: Answer) -> None:
        url = f"{self._url}/generate{'_stream' * shot.stream}"
        headers = {"Content-Length": str(shot.size)} if shot.size else {}
        try:
            async with self._session.post(url, data=_body(shot), headers=headers) as response:
                answer.status = response.status
                if response.status == 200 and shot.stream:
                    async for line in response.content:
                        if line.startswith(b"data:"):
                            answer.hear(json.loads(line[5:]))
                    if not answer.num_ends and answer.error is None:
                        answer.error = "the stream ended without an end"
                else:
                    _hear_whole(answer, await response.text(errors="replace"))
        except aiohttp.ClientError as error:
            answer.error = f"connection: {error}"

    async def _over_grpc(self, shot: Shot, answer: Answer) -> None:
        async def one() -> AsyncIterator[dict[str, Any]]:
            yield {
                "model_name": self._model,
                "inputs": [_tensor(name, value) for name, value in shot.values.items()],
                **({} if shot.limit_s is None else {"timeout": int(shot.limit_s * 1e6)}),
            }

        responses = self._grpc.stream_infer(one())
        try:
            async for result, error in responses:
                if error is not None:
                    answer.hear({"error": error.message()})
                else:
                    answer.hear(_values(result))
            answer.status = 200 if answer.error is None and answer.num_ends else 500
            if answer.status != 200 and answer.error is None:
                answer.error = "the stream ended without an end"
        except (grpc.aio.AioRpcError, InferenceServerException) as error:
            answer.error = f"connection: {error}".partition("\n")[0]
        finally:
            responses.cancel()


def _hear_whole(answer: Answer, body: str) -> None:
    try:
        values = json.loads(body)
    except ValueError:
        values = {"error": body}
    if answer.status != 200 and "error" not in values:
        values = {"error": body}
    answer.hear(values)


def _body(shot: Shot) -> Any:
    if shot.size:
        return _large(shot.size)
    if shot.raw is not None:
        return shot.raw
    limit = {} if shot.limit_s is None else {"timeout": int(shot.limit_s * 1e6)}
    return json.dumps({**shot.values, **limit}).encode()


async def _large(size: int) -> AsyncIterator[bytes]:
    for _ in range(size // MEGABYTE):
        yield _PIECE


def _tensor(name: str, value: Any) -> Any:
    wire, dtype = WIRE[BY_NAME[name].datatype]
    items = value if BY_NAME[name].is_list else [value]
    encoded = [item.encode() if isinstance(item, str) else item for item in items]
    tensor = triton.InferInput(name, [1, len(encoded)], wire)
    tensor.set_data_from_numpy(np.array([encoded], dtype=dtype))
    return tensor


def _values(result: Any) -> dict[str, Any]:
    values = {}
    for output in result.get_response().outputs:
        value = result.as_numpy(output.name).reshape(-1)[0]
        values[output.name] = value.decode() if isinstance(value, bytes) else value.item()
    return values
