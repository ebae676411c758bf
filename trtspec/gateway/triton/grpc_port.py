"""The public port of gRPC, which passes on allowed requests and their responses unchanged.

Some valid requests crash Triton 2.51: a text output with the parameter `classification` makes it divide by
zero (`TopkClassifications`; NVIDIA fixed it in 2.60).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import grpc
from google.protobuf.message import DecodeError
from grpc import StatusCode, aio
from tritonclient.grpc import service_pb2 as pb

from trtspec.gateway.client_bounds import HEAD_S, READING_S, SENDING_S, SHORT_BODY
from trtspec.gateway.ports import LOOPBACK, address_of, in_url
from trtspec.gateway.refusals import Refusal, Refusals, while_shut
from trtspec.serving.awaiting import within

_SERVICE = "/inference.GRPCInferenceService/"

STREAM = f"{_SERVICE}ModelStreamInfer"
"""The method whose errors are messages, after which the stream goes on."""

INFER = {f"{_SERVICE}ModelInfer", STREAM}
ALIVE = f"{_SERVICE}ServerLive"

_PASSED = INFER | {
    ALIVE,
    f"{_SERVICE}ServerReady",
    f"{_SERVICE}ModelReady",
    f"{_SERVICE}ServerMetadata",
    f"{_SERVICE}ModelMetadata",
    f"{_SERVICE}ModelConfig",
    f"{_SERVICE}ModelStatistics",
    "/grpc.health.v1.Health/Check",
}

# The model's parameters, and Triton's parameters for responses.
_PARAMETERS = {"timeout", "priority", "triton_enable_empty_final_response"}
_MOST_FIELDS, _MOST_TENSORS, _MOST_DIMENSIONS = 2048, 1024, 32
# Protobuf's wire types, those of a fixed size with it, and the numbers of `inputs` and `outputs`.
_VARINT, _BYTES, _FIXED, _TENSORS = 0, 2, {1: 8, 5: 4}, {5, 6}
_HEADERS = {"x-request-id", "traceparent", "tracestate"}
_REFUSED_HEADER = "triton_grpc_error"

Metadata = Iterable[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class InferProblem:
    """The reason why a request is refused."""

    message: str
    code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT
    id: str = ""
    """The request's id."""
    model_name: str = ""

    def in_stream(self) -> bytes:
        """Returns the error message for a stream, in Triton's form."""
        response = pb.ModelInferResponse(id=self.id, model_name=self.model_name)
        message = pb.ModelStreamInferResponse(error_message=self.message, infer_response=response)
        return bytes(message.SerializeToString())


def is_passed(method: str) -> bool:
    """Says whether clients may call a method. Others change the server, or give access to its memory."""
    return method in _PASSED


def problem_of(message: bytes) -> InferProblem | None:
    """Returns the problem with a `ModelInferRequest`; None if it may reach Triton."""
    if len(message) > SHORT_BODY and fields_left(memoryview(message), _MOST_FIELDS) < 0:
        return InferProblem(f"the request has more than {_MOST_FIELDS} fields")
    try:
        request = pb.ModelInferRequest.FromString(message)
    except DecodeError:
        return InferProblem("the message is not a ModelInferRequest")
    why = _why(request, len(message))
    return InferProblem(why, id=request.id, model_name=request.model_name) if why else None


def fields_left(message: memoryview, most: int) -> int:
    """Returns `most` without the fields of a message, of its large tensors and of their contents.

    It stops when none are left. A message of 4 MiB has room for millions, and is a few kilobytes when it is
    compressed. Parsing it would hold up everybody for a third of a second. One that is malformed is left to
    the parser.
    """
    at = 0
    try:
        while at < len(message) and most >= 0:
            most -= 1
            tag, at = _varint(message, at)
            if tag & 7 == _VARINT:
                _, at = _varint(message, at)
            elif tag & 7 == _BYTES:
                size, at = _varint(message, at)
                if tag >> 3 in _TENSORS and size > SHORT_BODY:
                    most = fields_left(message[at : at + size], most)
                at += size
            else:
                at += _FIXED[tag & 7]
    except (IndexError, KeyError):
        pass
    return most


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """Returns the number at a place, and the place behind it; raises IndexError without one."""
    number = 0
    for shift in range(0, 70, 7):
        byte, at = message[at], at + 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise IndexError


def _why(request: pb.ModelInferRequest, size: int) -> str | None:
    for name in request.parameters:
        if name not in _PARAMETERS:
            return f"the request has the unknown parameter {name!r:.80}"
    if len(request.inputs) + len(request.outputs) > _MOST_TENSORS:
        return f"the request has more than {_MOST_TENSORS} inputs and outputs"
    for tensor in (*request.inputs, *request.outputs):
        for name in tensor.parameters:
            return f"{tensor.name!r:.80} has the unknown parameter {name!r:.80}"
    for tensor in request.inputs:
        is_too_deep = len(tensor.shape) > _MOST_DIMENSIONS
        if is_too_deep or any(number < 0 for number in tensor.shape) or math.prod(tensor.shape) > size:
            return f"the shape of {tensor.name!r:.80} does not match its elements"
    return None


def forwarded(metadata: Metadata) -> list[tuple[str, str | bytes]]:
    """Returns the metadata of a call that is passed on to Triton."""
    return [(name, value) for name, value in metadata if name in _HEADERS]


def refused_header(metadata: Metadata) -> InferProblem | None:
    """Returns the problem with a call that has a header which can crash Triton; None without it."""
    if any(name == _REFUSED_HEADER for name, _ in metadata):
        return InferProblem(f"the header {_REFUSED_HEADER} is not supported")
    return None


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
