"""A gRPC client of a running Triton server."""

from __future__ import annotations

import queue
import time
from collections.abc import Generator, Mapping
from contextlib import suppress
from threading import TIMEOUT_MAX
from typing import Any

import numpy as np
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException

from trtspec.base.errors import ServerError
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


class GrpcClient:
    """Asks one model of the server at `url` (host:port of gRPC); raises `ServerError` with its message.

    An answer must be whole after `timeout_s` seconds.
    """

    def __init__(self, url: str, model_name: str, timeout_s: float = TIMEOUT_MAX) -> None:
        self._url, self._model_name, self._timeout_s = url, model_name, timeout_s
        self._triton = grpc.InferenceServerClient(url)

    def wait(self, seconds: float) -> None:
        """Returns when the model is ready; raises `ServerError` when it is not after so many seconds."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if self._triton.is_model_ready(self._model_name, client_timeout=_LOOK_S):
                    return
                problem = f"has no model {self._model_name} that is ready"
                repair = "name one with --model-name"
            except InferenceServerException as error:
                problem = f"no Triton server answers: {_first_line(error)}"
                repair = (
                    "start one with: trtspec deploy RECIPE, or name its host and gRPC port with --url;"
                    " vLLM's and its like are --url http://127.0.0.1:9000/v1"
                )
            if time.monotonic() > deadline:
                raise ServerError(self._url, problem, repair)
            time.sleep(0.2)

    def inputs(self) -> set[str]:
        """Returns the names of the model's inputs."""
        try:
            told = self._triton.get_model_metadata(self._model_name, client_timeout=_LOOK_S)
        except InferenceServerException as error:
            raise ServerError(self._url, _first_line(error)) from error
        return {tensor.name for tensor in told.inputs}

    def generate(self, values: Mapping[str, Any]) -> Generator[dict[str, Any], None, None]:
        """Yields the responses to one request, each as the values of its output tensors by their names.

        `values` has the value of each input that is sent, by its name. A tensor of any length is a list.
        Closing the iterator cancels the request.
        """
        heard: queue.Queue[tuple[Any, Exception | None]] = queue.Queue()
        self._triton.start_stream(lambda result, error: heard.put((result, error)))
        is_over, until = False, time.monotonic() + self._timeout_s
        try:
            # A stream that has broken by now takes no request; the queue has the reason.
            with suppress(InferenceServerException):
                self._triton.async_stream_infer(
                    self._model_name,
                    [_tensor(name, value) for name, value in values.items()],
                    enable_empty_final_response=True,
                )
            while not is_over:
                left = max(until - time.monotonic(), 0.0)
                try:
                    result, error = heard.get(timeout=min(left, TIMEOUT_MAX))
                except queue.Empty:
                    raise overdue(self._url, self._timeout_s) from None
                if error is not None:
                    raise ServerError(self._url, _first_line(error))
                response = result.get_response()
                is_over = response.parameters["triton_final_response"].bool_param
                if response.outputs:
                    names = [output.name for output in response.outputs]
                    yield {name: _value(name, result.as_numpy(name)) for name in names}
        finally:
            self._triton.stop_stream(cancel_requests=not is_over)

    def close(self) -> None:
        self._triton.close()


def overdue(url: str, seconds: float) -> ServerError:
    """Returns the error for an answer that is not complete after so many seconds."""
    problem = f"the answer is not complete after {seconds:g} s, so it is given up"
    return ServerError(url, problem, "wait longer with --timeout, or ask for less with --max-tokens")


def _tensor(name: str, value: Any) -> Any:
    wire, dtype = WIRE[BY_NAME[name].datatype]
    items = value if BY_NAME[name].is_list else [value]
    # Bytes of the command line that are not UTF-8 are sent as they are, and numbers too large for 32 bits as
    # infinity: the server says what is wrong with them.
    encoded = [item.encode(errors="surrogateescape") if isinstance(item, str) else item for item in items]
    with np.errstate(over="ignore"):
        array = np.array([encoded], dtype=dtype)
    tensor = grpc.InferInput(name, array.shape, wire)
    tensor.set_data_from_numpy(array)
    return tensor


def _value(name: str, array: Any) -> Any:
    if name in LISTS:
        return array.reshape(-1).tolist()
    value = array.reshape(-1)[0]
    return value.decode(errors="replace") if isinstance(value, bytes) else value.item()


def _first_line(error: Exception) -> str:
    message = error.message() if isinstance(error, InferenceServerException) else str(error)
    return (message or str(error)).partition("\n")[0]
