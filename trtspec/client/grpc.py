"""Triton's gRPC: the same models as over its HTTP, without JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from time import perf_counter
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

from trtspec.base.errors import ServerError, UnavailableError
from trtspec.client.endpoint import AskError, EndpointRequest, Hear, TimedAnswer, unheard
from trtspec.client.triton import VLLM_INPUT, TritonTextModel
from trtspec.gateway.ports import HTTP, LOOPBACK
from trtspec.serving.awaiting import within
from trtspec.serving.triton.tensors import INPUTS, OUTPUTS, Datatype

WIRE = {
    Datatype.STRING: ("BYTES", np.object_),
    Datatype.BOOL: ("BOOL", np.bool_),
    Datatype.INT32: ("INT32", np.int32),
    Datatype.UINT64: ("UINT64", np.uint64),
    Datatype.FP32: ("FP32", np.float32),
}
BY_NAME = {tensor.name: tensor for tensor in INPUTS}
LISTS = {tensor.name for tensor in OUTPUTS if -1 in tensor.dims}
_LOOK_S = 10.0
"""The seconds that a server has to answer whether a model is there, and which inputs it takes."""
_BROKEN = (grpc.aio.AioRpcError, InferenceServerException)


class GrpcEndpoint(TritonTextModel):
    """One model of the Triton server at `url`, which is HOST:PORT; its answer has all outputs as `tensors`.

    An answer must be complete after `timeout_s` seconds.
    """

    @classmethod
    async def find(cls, url: str, model: str, timeout_s: float) -> GrpcEndpoint:
        """Returns the model; raises `UnavailableError` if it is not there, or not ready.

        Raises `ServerError` for a model of Triton's vLLM backend.
        """
        client = triton.InferenceServerClient(url)
        try:
            is_ready = await client.is_model_ready(model, client_timeout=_LOOK_S)
            metadata = await client.get_model_metadata(model, client_timeout=_LOOK_S) if is_ready else None
        except _BROKEN as error:
            await client.close()
            repair = (
                "start one with: trtspec deploy RECIPE, or name its host and gRPC port with --url;"
                " vLLM's and its like are --url http://127.0.0.1:9000/v1"
            )
            problem = f"no Triton server answers: {_first_line(error)}"
            raise UnavailableError(url, problem, repair) from error
        if metadata is None:
            await client.close()
            raise UnavailableError(url, f"has no model {model} that is ready", "name one with --model-name")
        inputs, outputs = (
            frozenset(tensor.name for tensor in side) for side in (metadata.inputs, metadata.outputs)
        )
        if VLLM_INPUT in inputs:
            await client.close()
            problem = "the model is one of Triton's vLLM backend, which has another API"
            raise ServerError(url, problem, f"name Triton's HTTP port: --url http://{LOOPBACK}:{HTTP}")
        return cls(url, model, inputs, outputs, client, timeout_s)

    def __init__(
        self,
        url: str,
        model: str,
        inputs: frozenset[str],
        outputs: frozenset[str],
        client: Any,
        timeout_s: float,
    ) -> None:
        super().__init__(url, model, inputs, outputs)
        self._client, self._timeout_s = client, timeout_s

    async def ask(self, question: EndpointRequest, hear: Hear = unheard) -> TimedAnswer:
        answer = TimedAnswer(sent=perf_counter())
        try:
            await within(self._timeout_s, self._read(answer, self.body(question), hear))
        except asyncio.TimeoutError:
            raise AskError("timed_out", "no complete answer in time", answer.sent) from None
        except _BROKEN as error:
            raise AskError("failed", _first_line(error), answer.sent) from error
        return self.whole(answer)

    async def close(self) -> None:
        await self._client.close()

    async def _read(self, answer: TimedAnswer, values: Mapping[str, Any], hear: Hear) -> None:
        async def request() -> AsyncIterator[dict[str, Any]]:
            inputs = [to_tensor(name, value) for name, value in values.items()]
            yield {"model_name": self.model, "inputs": inputs}

        responses = self._client.stream_infer(request())
        try:
            async for result, error in responses:
                if error is not None:
                    raise error
                response = result.get_response()
                names = [output.name for output in response.outputs]
                said = {name: to_value(name, result.as_numpy(name)) for name in names}
                self.add(answer, said, perf_counter())
                _join(answer.tensors, said)
                if text := said.get("text_output"):
                    hear(text)
        finally:
            with suppress(*_BROKEN):
                responses.cancel()


async def is_live(url: str, timeout_s: float) -> bool:
    """Says whether a Triton server answers at HOST:PORT."""
    client = triton.InferenceServerClient(url)
    try:
        return bool(await client.is_server_live(client_timeout=timeout_s))
    except _BROKEN:
        return False
    finally:
        await client.close()


def _join(tensors: dict[str, Any], said: dict[str, Any]) -> None:
    """Adds the outputs of a response: what has a value for each token comes in pieces, as the text does."""
    for name, value in said.items():
        if name in LISTS and name in tensors:
            tensors[name] = tensors[name] + value
        elif name != "text_output":
            tensors[name] = value


def to_tensor(name: str, value: Any) -> Any:
    """Returns an input of trtspec's model for `tritonclient`; a tensor of any length has a list."""
    wire, dtype = WIRE[BY_NAME[name].datatype]
    items = value if BY_NAME[name].is_list else [value]
    # Bytes of the command line that are not UTF-8 are sent as they are, and numbers too large for 32 bits as
    # infinity: the server says what is wrong with them.
    encoded = [item.encode(errors="surrogateescape") if isinstance(item, str) else item for item in items]
    with np.errstate(over="ignore"):
        array = np.array([encoded], dtype=dtype)
    tensor = triton.InferInput(name, array.shape, wire)
    tensor.set_data_from_numpy(array)
    return tensor


def to_value(name: str, array: Any) -> Any:
    """Returns the value of an output; a list for a tensor of any length."""
    if name in LISTS:
        return array.reshape(-1).tolist()
    value = array.reshape(-1)[0]
    return value.decode(errors="replace") if isinstance(value, bytes) else value.item()


def _first_line(error: Any) -> str:
    message = error.details() if isinstance(error, grpc.aio.AioRpcError) else error.message()
    return (message or str(error)).partition("\n")[0]
