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

from trtspec.gateway.client_bounds import SHORT_BODY

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
