"""Runs one request: asks the model, forwards its pieces, and stops when the client leaves."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress
from typing import Protocol

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from trtspec.gateway.openai.answers import DONE
from trtspec.gateway.openai.departure import unless_left
from trtspec.gateway.openai.errors import ApiError
from trtspec.gateway.openai.job import ModelRequest
from trtspec.gateway.openai.pieces import ChoicePiece, piece
from trtspec.gateway.openai.places import Places
from trtspec.gateway.openai.request_id import id_headers
from trtspec.gateway.openai.upstream import Upstream
from trtspec.serving.awaiting import interleave

Headers = list[tuple[bytes, bytes]]

_JSON = (b"content-type", b"application/json")
# A client's trace, which continues in Triton's spans (https://www.w3.org/TR/trace-context).
_TRACE = (b"traceparent", b"tracestate")
# Proxies that collect what they pass on would spoil a stream.
_STREAM: Headers = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


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
            async for batch in batches:
                yield [piece(said, first) for said in batch]


async def _begin(send: Send, status: int, headers: Headers) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _send_error(send: Send, error: ApiError, name: Headers) -> None:
    body = error.body()
    more = [(header.lower().encode(), value.encode()) for header, value in error.headers.items()]
    await _begin(send, error.status, [_JSON, (b"content-length", str(len(body)).encode()), *more, *name])
    await send({"type": "http.response.body", "body": body})
