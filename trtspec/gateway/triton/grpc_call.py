"""One gRPC call of a client, which is passed on to Triton. Requests are checked, responses are bytes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import grpc
from grpc import aio

from trtspec.gateway.client_bounds import SENDING_S
from trtspec.gateway.triton.grpc_requests import InferProblem, Metadata
from trtspec.serving.awaiting import within


class Call:
    """Passes one call on. `check` returns the problem with a request, and counts it.

    `answer` and `stream` return at the end of the call. If it ends with an error, they raise that of
    `context.abort`. They raise `CancelledError` when the client leaves, or after `leave`.
    """

    def __init__(
        self, context: aio.ServicerContext, check: Callable[[bytes], InferProblem | None], metadata: Metadata
    ) -> None:
        self._context, self._check, self._metadata = context, check, list(metadata)
        self._task, self._turn = asyncio.current_task(), asyncio.Lock()
        self._writing_since: float | None = None

    def leave(self, seconds: float) -> None:
        """Ends the call if its client has not taken a response for so many seconds."""
        since = self._writing_since
        if self._task and since is not None and time.monotonic() - since > seconds:
            self._task.cancel()

    async def answer(self, ask: aio.UnaryUnaryMultiCallable) -> None:
        """Passes on one request and its one response."""
        try:
            message = await within(SENDING_S, self._context.read())
        except asyncio.TimeoutError:
            why = f"the request did not arrive within {SENDING_S:g} s"
            await self._context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, why)
        if message is aio.EOF:
            await self._context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")
        if problem := self._check(message):
            await self._context.abort(problem.code, problem.message)
        try:
            answer = await ask(message, timeout=self._context.time_remaining(), metadata=self._metadata)
        except aio.AioRpcError as error:
            await self._context.abort(error.code(), error.details() or "")
        await self._write(answer)

    async def stream(self, ask: aio.StreamStreamMultiCallable) -> None:
        """Passes on requests and responses as they come."""
        triton = ask(timeout=self._context.time_remaining(), metadata=self._metadata)
        sending = asyncio.create_task(self._send(triton))
        try:
            while (answer := await triton.read()) is not aio.EOF:
                await self._write(answer)
        except aio.AioRpcError as error:
            await self._context.abort(error.code(), error.details() or "")
        finally:
            sending.cancel()
            triton.cancel()

    async def _send(self, triton: aio.StreamStreamCall) -> None:
        try:
            while (message := await self._context.read()) is not aio.EOF:
                if problem := self._check(message):
                    await self._write(problem.in_stream())
                else:
                    await triton.write(message)
            await triton.done_writing()
        except (aio.AioRpcError, asyncio.InvalidStateError):
            # Triton has ended the call. `stream` gets the reason.
            return

    async def _write(self, answer: bytes) -> None:
        async with self._turn:
            self._writing_since = time.monotonic()
            await self._context.write(answer)
            self._writing_since = None
