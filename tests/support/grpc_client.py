"""A client over Triton's gRPC that yields each response as it is, by NVIDIA's threaded client."""

from __future__ import annotations

import queue
from collections.abc import Generator, Mapping
from contextlib import suppress
from typing import Any

import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException

from trtspec.base.errors import ServerError
from trtspec.client.grpc import to_tensor, to_value

END_S = 240.0
"""The seconds that a server has for its next response."""


class GrpcClient:
    """Asks the model of the server at `url` (host:port); raises `ServerError` with its message."""

    def __init__(self, url: str, model_name: str) -> None:
        self._url, self._model_name = url, model_name
        self._triton = grpc.InferenceServerClient(url)

    def generate(self, values: Mapping[str, Any]) -> Generator[dict[str, Any], None, None]:
        """Yields the values of the output tensors of each response; closing it cancels the request."""
        heard: queue.Queue[tuple[Any, Exception | None]] = queue.Queue()
        self._triton.start_stream(lambda result, error: heard.put((result, error)))
        is_over = False
        try:
            inputs = [to_tensor(name, value) for name, value in values.items()]
            with suppress(InferenceServerException):  # the stream has ended, and its end is heard below
                self._triton.async_stream_infer(self._model_name, inputs, enable_empty_final_response=True)
            while not is_over:
                result, error = heard.get(timeout=END_S)
                if error is not None:
                    raise ServerError(self._url, str(error).partition("\n")[0])
                response = result.get_response()
                is_over = response.parameters["triton_final_response"].bool_param
                if response.outputs:
                    names = [output.name for output in response.outputs]
                    yield {name: to_value(name, result.as_numpy(name)) for name in names}
        finally:
            self._triton.stop_stream(cancel_requests=not is_over)

    def close(self) -> None:
        self._triton.close()
