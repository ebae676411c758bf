"""Through the gRPC port of `trtspec deploy` no request ends the server, and clients' tools work."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException

from tests.e2e.conftest import DEADLINE_S, IN_PROCESS, Deploy
from trtspec.gateway.triton.grpc_port import MAX_MESSAGE

pytestmark = IN_PROCESS


@pytest.fixture
def client(server: Deploy) -> Iterator[Any]:
    with closing(grpc.InferenceServerClient(server.grpc_url)) as client:
        yield client


def text(prompt: bytes) -> Any:
    tensor = grpc.InferInput("text_input", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[prompt]], dtype=object))
    return tensor


def heard(client: Any, *requests: dict[str, Any], headers: dict[str, str] | None = None) -> list[str]:
    """What one stream says to each of the requests: an error, or "text"."""
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)), headers=headers)
    said = []
    try:
        for request in requests:
            # A stream that has ended by now takes no request, and has said why.
            with suppress(InferenceServerException):
                client.async_stream_infer("speculative_llm", **{"inputs": [text(b"import ")], **request})
            _, error = answers.get(timeout=DEADLINE_S)
            said.append("text" if error is None else error.message())
    finally:
        client.stop_stream()
    return said


def test_classes_of_a_text_are_refused_and_the_stream_goes_on(server: Deploy, client: Any) -> None:
    """Triton 2.51 itself ends with SIGFPE."""
    classes = grpc.InferRequestedOutput("text_output", class_count=5)
    before = server.metric("front_refusals", reason="invalid_request")

    said = heard(client, {"outputs": [classes]}, {})

    assert said == ["'text_output' has the unknown parameter 'classification'", "text"]
    assert server.metric("front_refusals", reason="invalid_request") == before + 1
    with pytest.raises(InferenceServerException, match="classification"):
        client.infer(server.model, [text(b"a")], outputs=[classes])
    assert server.generate("import ", max_tokens=2)


def test_the_header_that_triton_can_crash_of_is_refused(server: Deploy, client: Any) -> None:
    (said,) = heard(client, {}, headers={"triton_grpc_error": "true"})
    assert said == "the header triton_grpc_error is not supported"


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_large_message_is_refused_before_it_is_here(client: Any, compression: str | None) -> None:
    with pytest.raises(InferenceServerException, match="essage larger than max"):
        client.infer("speculative_llm", [text(bytes(16 * MAX_MESSAGE))], compression_algorithm=compression)
    assert heard(client, {}) == ["text"]


def test_tools_can_ask_what_they_measure(server: Deploy, client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(server.model)
    assert not client.is_model_ready("other")
    assert client.get_server_metadata().name == "triton"
    assert client.get_model_config(server.model).config.name == server.model
    assert "text_input" in {tensor.name for tensor in client.get_model_metadata(server.model).inputs}
    assert len(client.get_inference_statistics().model_stats) >= 1


@pytest.mark.parametrize(
    "name",
    [
        "get_model_repository_index",
        "get_system_shared_memory_status",
        "get_cuda_shared_memory_status",
        "get_trace_settings",
        "get_log_settings",
    ],
)
def test_grpc_clients_cannot_call_the_calls_that_manage_the_server(client: Any, name: str) -> None:
    with pytest.raises(InferenceServerException, match="this API is closed"):
        getattr(client, name)()
