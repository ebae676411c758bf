"""The gRPC requests that may reach Triton. No I/O.

Some valid requests crash Triton 2.51: a text output with the parameter `classification` makes it divide by
zero (`TopkClassifications`; NVIDIA fixed it in 2.60).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import grpc
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

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
    try:
        request = pb.ModelInferRequest.FromString(message)
    except DecodeError:
        return InferProblem("the message is not a ModelInferRequest")
    why = _why(request, len(message))
    return InferProblem(why, id=request.id, model_name=request.model_name) if why else None


def _why(request: pb.ModelInferRequest, size: int) -> str | None:
    for name in request.parameters:
        if name not in _PARAMETERS:
            return f"the request has the unknown parameter {name!r:.80}"
    for tensor in (*request.inputs, *request.outputs):
        for name in tensor.parameters:
            return f"{tensor.name!r:.80} has the unknown parameter {name!r:.80}"
    for tensor in request.inputs:
        if any(number < 0 for number in tensor.shape) or math.prod(tensor.shape) > size:
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
