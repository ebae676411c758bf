"""The gRPC requests that may reach Triton; pure.

Triton 2.51 does not survive all that its own protocol allows: an output of text that is asked for with the
parameter `classification` makes it divide by zero (`TopkClassifications`; NVIDIA mended it in 2.60).
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
"""The method whose errors are messages, behind which the stream goes on."""

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

# What the model takes as parameters, and those of Triton's that concern the answer alone.
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
    """The request's own."""
    model_name: str = ""
    """The request's own."""

    def in_stream(self) -> bytes:
        """Returns the message that says so in a stream, as Triton itself does."""
        response = pb.ModelInferResponse(id=self.id, model_name=self.model_name)
        said = pb.ModelStreamInferResponse(error_message=self.message, infer_response=response)
        return bytes(said.SerializeToString())


def is_passed(method: str) -> bool:
    """Says whether clients may call a method: others change the server, or let a client into its memory."""
    return method in _PASSED


def problem_of(message: bytes) -> InferProblem | None:
    """Returns why a `ModelInferRequest` is refused; None if it may reach Triton."""
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
    """Returns the metadata of a call that Triton is to have."""
    return [(name, value) for name, value in metadata if name in _HEADERS]


def refused_header(metadata: Metadata) -> InferProblem | None:
    """Returns why a call is refused for a header with which Triton can crash; None if it has none."""
    if any(name == _REFUSED_HEADER for name, _ in metadata):
        return InferProblem(f"the header {_REFUSED_HEADER} is not supported")
    return None
