"""Runs one request: names it, asks the model, forwards its pieces, and stops when the client leaves.

A request has the client's own name, or a new one. The model's log has the name, the answer's `id` ends with
it as in vLLM, and the answer's header `X-Request-Id` has it, which OpenAI's clients show as `_request_id`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Any, Protocol, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from trtspec.gateway.openai.answers import DONE
from trtspec.gateway.openai.errors import ApiError
from trtspec.gateway.openai.job import ModelRequest
from trtspec.gateway.openai.model_output import ChoicePiece, of_guide, piece
from trtspec.gateway.openai.upstream import Upstream
from trtspec.serving.awaiting import interleave
from trtspec.serving.triton.agreement import HEADER, LONGEST

Headers = list[tuple[bytes, bytes]]
T = TypeVar("T")

_KEY = "trtspec.request_id"
_HEADER = HEADER.encode()
_JSON = (b"content-type", b"application/json")
# A client's trace, which continues in Triton's spans (https://www.w3.org/TR/trace-context).
_TRACE = (b"traceparent", b"tracestate")
# Proxies that collect what they pass on would spoil a stream.
_STREAM: Headers = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Places:
    """`most` slots; a request takes one, and one more for each prompt after its first."""

    def __init__(self, most: int) -> None:
        self._most, self._taken = most, 0

    def check(self, prompts: int) -> None:
        """Raises `ApiError` 400 for a request with more prompts than slots: it would never be served."""
        if prompts > self._most:
            message = f"prompt has {prompts} prompts, but this server runs at most {self._most} at once"
            raise ApiError(400, f"{message}; send them in several requests", param="prompt")

    @contextmanager
    def taken(self, number: int) -> Iterator[None]:
        """Takes slots for the block; raises `ApiError` 429 if fewer are free."""
        if self._taken + number > self._most:
            message = f"{self._taken} of {self._most} prompts are running, so {number} more are too many"
            raise ApiError(429, f"{message}; try again later", code="rate_limit_exceeded")
        self._taken += number
        try:
            yield
        finally:
            self._taken -= number


class AnswerBuilder(Protocol):
    """Makes bytes from the pieces of an answer: all at once, or as events."""

    def whole(self, pieces: Iterable[ChoicePiece]) -> bytes: ...

    def chunk(self, pieces: Iterable[ChoicePiece]) -> bytes: ...

    def end(self) -> bytes: ...


class Exchange(Response):
    """An answer of the model to a `job`, whose whole body has come.

    Its request has one of the `places`; raises `ApiError` if there are too few for the other prompts.
    """

    def __init__(self, upstream: Upstream, job: ModelRequest, answer: AnswerBuilder, places: Places) -> None:
        super().__init__()
        self._upstream, self._job, self._answer, self._places = upstream, job, answer, places
        self._trace: Headers = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._trace = [header for header in scope["headers"] if header[0] in _TRACE]
        prompts = len(self._job.inputs)
        self._places.check(prompts)
        with self._places.taken(prompts - 1), suppress(ClientDisconnect):
            await unless_left(receive, self._tell(send, id_headers(scope)))

    async def _tell(self, send: Send, name: Headers) -> None:
        if self._job.stream:
            await self._stream(send, name)
            return
        try:
            pieces = [piece async for batch in self._pieces() for piece in batch]
            body = self._answer.whole(pieces)
        except ApiError as error:
            await _send_error(send, error, name)
            return
        await _begin(send, 200, [_JSON, (b"content-length", str(len(body)).encode()), *name])
        await send({"type": "http.response.body", "body": body})

    async def _stream(self, send: Send, name: Headers) -> None:
        has_begun = False
        try:
            async with aclosing(self._pieces()) as batches:
                async for batch in batches:
                    data = self._answer.chunk(batch)
                    if not has_begun:
                        await _begin(send, 200, [*_STREAM, *name])
                        has_begun = True
                    if data:
                        await send({"type": "http.response.body", "body": data, "more_body": True})
            end = self._answer.end()
        except ApiError as error:
            if not has_begun:
                await _send_error(send, error, name)
                return
            end = b"data: " + error.body() + b"\n\n" + DONE
        await send({"type": "http.response.body", "body": end})

    async def _pieces(self) -> AsyncGenerator[list[ChoicePiece], None]:
        """Yields what the model says, until every choice has its last piece; raises `ApiError`."""
        left, inputs = self._job.num_choices, self._job.inputs
        # An error of one prompt ends the others.
        asked = [self._one(number) for number in range(len(inputs))]
        async with aclosing(asked[0] if len(asked) == 1 else interleave(asked)) as batches:
            async for batch in batches:
                left -= sum(piece.finish_reason is not None for piece in batch)
                yield batch
        if left:
            raise ApiError(503, "the server ended before the answer was complete")

    async def _one(self, number: int) -> AsyncGenerator[list[ChoicePiece], None]:
        first = number * self._job.num_sequences
        async with aclosing(self._upstream.ask(self._job.inputs[number], self._trace)) as batches:
            try:
                async for batch in batches:
                    yield [piece(said, first) for said in batch]
            except ApiError as error:
                raise of_guide(error, self._job.guided_by) from None


async def _begin(send: Send, status: int, headers: Headers) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _send_error(send: Send, error: ApiError, name: Headers) -> None:
    body = error.body()
    more = [(header.lower().encode(), value.encode()) for header, value in error.headers.items()]
    await _begin(send, error.status, [_JSON, (b"content-length", str(len(body)).encode()), *more, *name])
    await send({"type": "http.response.body", "body": body})


async def unless_left(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Returns or raises what the work does.

    If the client leaves, ends the work and raises `ClientDisconnect`. The body of the request must have been
    read.
    """
    working, leaving = asyncio.create_task(work), asyncio.create_task(_left(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


def name_request(scope: Scope) -> None:
    """Names the request of this scope."""
    given = next((value for name, value in scope["headers"] if name == _HEADER), b"")
    scope[_KEY] = given[:LONGEST].decode("latin-1") or uuid.uuid4().hex


def request_id(scope: Scope) -> str:
    """Returns the name that the request was given; empty where it has none."""
    name: str = scope.get(_KEY, "")
    return name


def id_headers(scope: Scope) -> Headers:
    """Returns the header that tells the client the name, if there is one."""
    name = request_id(scope)
    return [(_HEADER, name.encode("latin-1"))] if name else []
