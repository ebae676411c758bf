"""`trtspec generate` where nobody serves, and where a model of another backend of Triton's does."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc as services

from tests.command_line import trtspec
from trtspec.cli import generate
from trtspec.deploy.ports import free_ports


class VllmModel(services.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Tells of a model what Triton's vLLM backend does."""

    def ModelReady(self, request: Any, context: Any) -> Any:
        return pb.ModelReadyResponse(ready=True)

    def ModelMetadata(self, request: Any, context: Any) -> Any:
        names = ("text_input", "stream", "sampling_parameters")
        return pb.ModelMetadataResponse(inputs=[{"name": name} for name in names])


@pytest.fixture
def vllm_model() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(1))
    services.add_GRPCInferenceServiceServicer_to_server(VllmModel(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


def test_a_model_of_the_vllm_backend_is_asked_by_http(vllm_model: str) -> None:
    said = trtspec("generate", "--url", vllm_model, "a")
    assert said.returncode == 1
    assert "Triton's vLLM backend" in said.stderr
    assert "--url http://127.0.0.1:8000" in " ".join(said.stderr.split())


def test_nobody_serves_here(monkeypatch: pytest.MonkeyPatch) -> None:
    grpc_port, api_port = free_ports(2)
    monkeypatch.setattr(generate, "GRPC", grpc_port)
    monkeypatch.setattr(generate, "OPENAI", api_port)
    monkeypatch.setattr(generate, "_API", f"http://127.0.0.1:{api_port}/v1")
    said = trtspec("generate", "a")
    assert said.returncode == 1
    assert f"nobody listens on port {grpc_port}, Triton's gRPC, or {api_port}" in " ".join(
        said.stderr.split()
    )
    assert "trtspec deploy RECIPE" in " ".join(said.stderr.split())
