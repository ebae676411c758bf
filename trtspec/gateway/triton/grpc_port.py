"""The public port of gRPC, which passes on allowed requests and their responses unchanged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

import grpc
from grpc import StatusCode, aio
from tritonclient.grpc import service_pb2 as pb

from trtspec.gateway.client_bounds import HEAD_S, READING_S, SENDING_S
from trtspec.gateway.ports import LOOPBACK, address_of, in_url
from trtspec.gateway.refusals import Refusal, Refusals, while_shut
from trtspec.gateway.triton.grpc_requests import (
    ALIVE,
    INFER,
    STREAM,
    InferProblem,
    Metadata,
    forwarded,
    is_passed,
    problem_of,
    refused_header,
)
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


MAX_MESSAGE = 4 << 20
"""The largest request in bytes: gRPC's own default, with room for more than a million tokens."""

# Each call may hold one message, so these limits bound the memory of clients.
MOST_CALLS = 512
_MOST_CONNECTIONS = 512
_IDLE_S = 75.0
_LOOKS = 4
_LIVE = pb.ServerLiveResponse(live=True).SerializeToString()
_LISTENING = (
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_allowed_incoming_connections", _MOST_CONNECTIONS),
    ("grpc.server_handshake_timeout_ms", int(HEAD_S * 1000)),
    ("grpc.max_connection_idle_ms", int(_IDLE_S * 1000)),
    # A client that reads nothing answers no pings.
    ("grpc.keepalive_time_ms", int(READING_S * 1000)),
    # Otherwise two servers could listen on one port, and share its clients.
    ("grpc.so_reuseport", 0),
)
_ASKING = (("grpc.max_receive_message_length", -1),)


class GrpcPort:
    """Listens from `start` to `close`, and refuses calls except from `open` to `shut`.

    All methods except `shut` are called on the event loop.
    """

    def __init__(self, host: str, port: int, refusals: Refusals) -> None:
        self._address, self._refusals = f"{in_url(address_of(host))}:{port}", refusals
        self._state: str | None = "starting"
        self._is_alive = True
        self._triton: aio.Channel | None = None
        self._calls = set[Call]()

    async def start(self) -> None:
        """Begins to listen; raises `OSError` if it cannot."""
        # After its last object gRPC joins its polling thread, even from the garbage collector, and may hang.
        # This reference is never released, so it does not do so.
        aio.init_grpc_aio()
        self._server = aio.server(handlers=[_Handler(self)], options=_LISTENING)
        try:
            self._server.add_insecure_port(self._address)
        except RuntimeError as error:
            raise OSError(str(error)) from None
        await self._server.start()
        self._looking = asyncio.create_task(self._look())

    async def open(self, port: int) -> None:
        """Passes calls from now on to Triton's gRPC, on this port of the loopback."""
        await self._hang_up()
        self._triton = aio.insecure_channel(f"{LOOPBACK}:{port}", options=_ASKING)
        self._state, self._is_alive = None, True

    def shut(self, state: str, *, is_alive: bool) -> None:
        """Refuses new requests from now on, also in running streams; `state` is the reason."""
        self._state, self._is_alive = state, is_alive

    async def close(self) -> None:
        self._looking.cancel()
        await self._server.stop(1.0)
        await self._hang_up()

    async def answer(self, method: str, _: object, context: aio.ServicerContext) -> None:
        """Answers one call."""
        metadata = context.invocation_metadata() or ()
        if method == ALIVE and self._state and self._is_alive:
            await context.write(_LIVE)
            return
        if problem := self._unavailable() or refused_header(metadata):
            if method in INFER:
                self._count(problem)
            await context.abort(problem.code, problem.message)
        assert self._triton
        call = Call(context, partial(self._check, method), forwarded(metadata))
        self._calls.add(call)
        try:
            if method == STREAM:
                await call.stream(self._triton.stream_stream(method))
            else:
                await call.answer(self._triton.unary_unary(method))
        finally:
            self._calls.discard(call)

    def _unavailable(self) -> InferProblem | None:
        if self._state or self._triton is None:
            return InferProblem(f"the server is {self._state}", StatusCode.UNAVAILABLE)
        if len(self._calls) >= MOST_CALLS:
            return InferProblem("too many calls at once", StatusCode.RESOURCE_EXHAUSTED)
        return None

    def _check(self, method: str, message: bytes) -> InferProblem | None:
        """Returns the problem with a request of a call, if any, and counts it."""
        if method not in INFER:
            return None
        problem = problem_of(message)
        if problem is None and self._state:
            problem = InferProblem(f"the server is {self._state}", StatusCode.UNAVAILABLE)
        if problem:
            self._count(problem)
        return problem

    def _count(self, problem: InferProblem) -> None:
        if problem.code is StatusCode.UNAVAILABLE:
            self._refusals.add(while_shut(self._state or ""))
        elif problem.code is StatusCode.RESOURCE_EXHAUSTED:
            self._refusals.add(Refusal.TOO_MANY_REQUESTS)
        else:
            self._refusals.add(Refusal.INVALID_REQUEST)

    async def _hang_up(self) -> None:
        if self._triton:
            await self._triton.close()

    async def _look(self) -> None:
        """Ends the calls of clients that take no responses."""
        while True:
            await asyncio.sleep(READING_S / _LOOKS)
            for call in self._calls:
                call.leave(READING_S)


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Returns the handler of a method. It is always one of streams: one message is a stream of one."""

    def __init__(self, port: GrpcPort) -> None:
        self._port = port

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        if not is_passed(details.method):
            return grpc.stream_stream_rpc_method_handler(_closed)
        return grpc.stream_stream_rpc_method_handler(partial(self._port.answer, details.method))


async def _closed(_: object, context: aio.ServicerContext) -> None:
    await context.abort(StatusCode.PERMISSION_DENIED, "this API is closed")
