"""Triton's gRPC with one model, whose responses are given."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc as services

WIRE = {
    "text_output": ("BYTES", np.object_),
    "finish_reason": ("BYTES", np.object_),
    "output_log_probs": ("FP32", np.float32),
}


class TritonModel(services.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Answers each request with the same responses, and breaks the stream off where one is an exception."""

    def __init__(
        self, *responses: dict[str, Any] | Exception, inputs: tuple[str, ...] = ("text_input",)
    ) -> None:
        self._responses, self._inputs = responses, inputs

    def ServerLive(self, request: Any, context: Any) -> Any:
        return pb.ServerLiveResponse(live=True)

    def ModelReady(self, request: Any, context: Any) -> Any:
        return pb.ModelReadyResponse(ready=True)

    def ModelMetadata(self, request: Any, context: Any) -> Any:
        inputs = [{"name": name} for name in self._inputs]
        return pb.ModelMetadataResponse(inputs=inputs, outputs=[{"name": "finish_reason"}])

    def ModelStreamInfer(self, requests: Any, context: Any) -> Iterator[Any]:
        next(requests)
        for response in self._responses:
            if isinstance(response, Exception):
                context.abort(grpc.StatusCode.UNAVAILABLE, str(response))
                return
            made = pb.ModelInferResponse()
            for name, values in response.items():
                datatype, dtype = WIRE.get(name, ("INT32", np.int32))
                array = np.array([values], dtype)
                made.outputs.add(name=name, datatype=datatype, shape=[1, len(values)])
                content = array.tobytes()
                if datatype == "BYTES":
                    content = len(values[0]).to_bytes(4, "little") + values[0]
                made.raw_output_contents.append(content)
            yield pb.ModelStreamInferResponse(infer_response=made)


@contextmanager
def served(model: TritonModel, port: int = 0) -> Iterator[str]:
    """Yields the address of a server; raises RuntimeError if the port is taken."""
    server = grpc.server(ThreadPoolExecutor(2))
    services.add_GRPCInferenceServiceServicer_to_server(model, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
