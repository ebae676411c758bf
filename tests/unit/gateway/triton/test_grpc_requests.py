"""Which gRPC requests may reach Triton."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from trtspec.gateway.client_bounds import SHORT_BODY
from trtspec.gateway.triton import grpc_port as module
from trtspec.gateway.triton.grpc_port import (
    fields_left,
    forwarded,
    is_passed,
    problem_of,
    refused_header,
)


def request() -> pb.ModelInferRequest:
    made = pb.ModelInferRequest(model_name="m", id="mine", raw_input_contents=[b"\4\0\0\0text"])
    made.inputs.add(name="text_input", datatype="BYTES", shape=[1, 1])
    made.outputs.add(name="text_output")
    made.parameters["timeout"].int64_param = 5
    made.parameters["triton_enable_empty_final_response"].bool_param = True
    return made


def said(made: pb.ModelInferRequest) -> str:
    problem = problem_of(made.SerializeToString())
    assert problem is not None
    assert (problem.id, problem.model_name) == ("mine", "m")
    answer = pb.ModelStreamInferResponse.FromString(problem.in_stream())
    assert answer.infer_response.id == "mine"
    message: str = answer.error_message
    return message


def test_a_grpc_request_with_known_inputs_passes_to_triton() -> None:
    assert problem_of(request().SerializeToString()) is None


@pytest.mark.parametrize(
    "name", ["classification", "shared_memory_region", "shared_memory_byte_size", "binary_data"]
)
def test_parameters_of_a_tensor_are_refused(name: str) -> None:
    for tensors in ("inputs", "outputs"):
        made = request()
        getattr(made, tensors)[0].parameters[name].int64_param = 5
        assert f"has the unknown parameter {name!r}" in said(made)


@pytest.mark.parametrize("name", ["trtspec_left", "trtspec_request", "sequence_id", "triton_other"])
def test_parameters_that_the_model_has_not_are_refused(name: str) -> None:
    made = request()
    made.parameters[name].string_param = "x"
    assert f"the request has the unknown parameter {name!r}" in said(made)


@pytest.mark.parametrize("shape", [[-1], [1, -1], [1 << 62, 4], [1 << 32, 1 << 32], [1 << 20], [0] * 99])
def test_more_elements_than_bytes_are_refused(shape: list[int]) -> None:
    made = request()
    made.inputs[0].shape[:] = shape
    assert "the shape of 'text_input' does not match" in said(made)


@pytest.mark.parametrize("tensors", ["inputs", "outputs"])
def test_more_tensors_than_any_model_has_are_refused(tensors: str) -> None:
    """Two millions of them are four kilobytes of a compressed message, and took the loop eleven seconds."""
    made = request()
    for _ in range(1100):
        getattr(made, tensors).add()
    assert "the request has more than 1024 inputs and outputs" in said(made)


def with_parameters(made: pb.ModelInferRequest) -> None:
    for number in range(5000):
        made.inputs[0].parameters[f"parameter {number}"].int64_param = number


def with_requests_parameters(made: pb.ModelInferRequest) -> None:
    for number in range(5000):
        made.parameters[f"parameter {number}"].int64_param = number


def with_tensors(made: pb.ModelInferRequest) -> None:
    for number in range(5000):
        made.outputs.add().name = f"output {number}"


@pytest.mark.parametrize("change", [with_parameters, with_requests_parameters, with_tensors])
def test_a_large_message_of_many_parts_is_refused_before_it_is_parsed(
    change: Callable[[pb.ModelInferRequest], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = request()
    change(made)
    message = made.SerializeToString()
    assert len(message) > SHORT_BODY
    monkeypatch.setattr(module, "pb", None)
    problem = problem_of(message)
    assert problem is not None
    assert problem.message == "the request has more than 2048 fields"


@pytest.mark.parametrize("packed", [True, False])
def test_large_texts_and_many_numbers_are_few_fields(packed: bool) -> None:
    made = request()
    contents = made.inputs[0].contents
    if packed:
        contents.int_contents.extend([7] * 1_000_000)
    else:
        contents.bytes_contents.extend([b"x" * 2_000_000, b"y" * 9] * 2)
    made.raw_input_contents.append(bytes(1_000_000))
    message = made.SerializeToString()
    assert fields_left(memoryview(message), 2048) > 2000
    assert problem_of(message) is None


@given(st.binary(max_size=300))
def test_whatever_the_bytes_the_number_of_fields_is_a_number(message: bytes) -> None:
    assert fields_left(memoryview(message), 50) <= 50


def test_bytes_that_are_no_grpc_request_are_refused() -> None:
    problem = problem_of(b"\xff\xff\xff")
    assert problem is not None
    assert problem.message == "the message is not a ModelInferRequest"


def test_a_clients_name_of_its_request_is_passed_and_nothing_else_that_it_says_of_itself() -> None:
    sent = [("x-request-id", "a"), ("trtspec-key", "k"), ("user-agent", "u"), ("traceparent", "t")]
    assert forwarded(sent) == [("x-request-id", "a"), ("traceparent", "t")]
    assert refused_header(sent) is None
    assert refused_header([*sent, ("triton_grpc_error", "true")]) is not None


def test_grpc_methods_that_change_the_server_do_not_pass_to_triton() -> None:
    service = "/inference.GRPCInferenceService/"
    calls = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
    closed = {name for name in calls if not is_passed(service + name)}
    assert {"RepositoryModelLoad", "SystemSharedMemoryRegister", "TraceSetting", "LogSettings"} <= closed
    assert {"ModelInfer", "ModelStreamInfer", "ServerReady", "ModelConfig"}.isdisjoint(closed)
    assert is_passed("/grpc.health.v1.Health/Check")
