"""The gRPC port in front of a server that says what it is asked for; Triton is not asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import grpc
import pytest
from grpc import StatusCode, aio
from tritonclient.grpc import service_pb2 as pb

from tests.support.ports import free_port
from trtspec.gateway.refusals import Refusals
from trtspec.gateway.triton import grpc_port as module
from trtspec.gateway.triton.grpc_port import ALIVE, STREAM, GrpcPort

BODY = pb.ModelInferRequest(model_name="m").SerializeToString()
HOST = "127.0.0.1"


class Model(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Streams without an end, and knows whether its client is there."""

    def __init__(self) -> None:
        self.at_work, self.has_left = asyncio.Event(), asyncio.Event()

    def service(self, _: object) -> grpc.RpcMethodHandler:
        return grpc.stream_stream_rpc_method_handler(self.stream)

    async def stream(self, _: object, context: aio.ServicerContext) -> None:
        try:
            await context.read()
            self.at_work.set()
            while True:
                await context.write(bytes(1 << 16))
        finally:
            self.has_left.set()


def tried(test: Callable[[GrpcPort, aio.Channel, Model], Awaitable[None]]) -> None:
    async def run() -> None:
        public, private = free_port(), free_port()
        model = Model()
        triton = aio.server(handlers=[model])
        triton.add_insecure_port(f"{HOST}:{private}")
        await triton.start()
        port = GrpcPort(HOST, public, Refusals("triton", "m"))
        await port.start()
        # One that is left to the garbage collector speaks up when the loop has long ended.
        try:
            await port.open(private)
            async with aio.insecure_channel(f"{HOST}:{public}") as channel:
                await test(port, channel, model)
        finally:
            await port.close()
            await triton.stop(0)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_who_takes_in_no_answer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READING_S", 0.3)

    async def test(port: GrpcPort, channel: aio.Channel, model: Model) -> None:
        call = channel.stream_stream(STREAM)()
        await call.write(BODY)
        await model.has_left.wait()

    tried(test)


def test_who_leaves_ends_the_request() -> None:
    async def test(port: GrpcPort, channel: aio.Channel, model: Model) -> None:
        call = channel.stream_stream(STREAM)()
        await call.write(BODY)
        await call.read()
        assert not model.has_left.is_set()
        call.cancel()
        await model.has_left.wait()

    tried(test)


def test_more_calls_than_there_is_memory_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CALLS", 1)

    async def test(port: GrpcPort, channel: aio.Channel, model: Model) -> None:
        first = channel.stream_stream(STREAM)()
        await first.write(BODY)
        await first.read()
        second = channel.stream_stream(STREAM)()
        assert await second.code() is StatusCode.RESOURCE_EXHAUSTED
        first.cancel()

    tried(test)


def test_while_it_is_shut_streams_go_on_and_take_nothing_new() -> None:
    async def test(port: GrpcPort, channel: aio.Channel, model: Model) -> None:
        running = channel.stream_stream(STREAM)()
        await running.write(BODY)
        await running.read()
        port.shut("stopping", is_alive=True)

        new = channel.stream_stream(STREAM)()
        assert (await new.code(), await new.details()) == (StatusCode.UNAVAILABLE, "the server is stopping")
        await running.write(BODY)
        while len(answer := await running.read()) == 1 << 16:
            pass
        assert b"the server is stopping" in answer
        alive = channel.unary_unary(ALIVE, response_deserializer=pb.ServerLiveResponse.FromString)
        assert (await alive(b"")).live
        port.shut("ended", is_alive=False)
        with pytest.raises(aio.AioRpcError, match="the server is ended"):
            await alive(b"")
        running.cancel()

    tried(test)


def test_a_port_that_is_taken_is_an_error() -> None:
    async def run() -> None:
        public = free_port()
        one, other = (GrpcPort(HOST, public, Refusals("triton", "m")) for _ in range(2))
        await one.start()
        try:
            with pytest.raises(OSError, match="bind"):
                await other.start()
        finally:
            await one.close()

    asyncio.run(run())
