"""What a deployment is told of logs, traces and variables arrives at the server, here and in a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtspec.backends.launch import ServerLaunch
from trtspec.deployment.deployment import Deployment
from trtspec.deployment.in_container import container
from trtspec.deployment.installed_triton import TritonInstall
from trtspec.deployment.triton_launch import TritonLaunch
from trtspec.deployment.vendor_launch import VendorLaunch

TRANSFER = "TRTLLM_KVCACHE_TRANSFER_BUFFER_SIZE"
TRACING = ("level=TIMESTAMPS", "triton,file=trace.json")


@pytest.mark.parametrize("json_logs", [False, True])
def test_the_models_log_as_they_are_told(tmp_path: Path, json_logs: bool) -> None:
    deployment = Deployment("pair", tmp_path, "pair", json_logs=json_logs)
    launch = TritonLaunch()
    here = launch.here(deployment, TritonInstall(Path("/tritonserver")), 0).environment
    there = container(deployment, launch, "image", ()).environment
    asked = {"TRTSPEC_LOG_FORMAT": "json"} if json_logs else {}
    for environment in (here, there):
        assert {name: value for name, value in environment.items() if "LOG_FORMAT" in name} == asked


def test_triton_traces_as_it_is_told(tmp_path: Path) -> None:
    deployment, launch = Deployment("pair", tmp_path, "pair"), TritonLaunch(trace_config=TRACING)
    here = launch.here(deployment, TritonInstall(Path("/tritonserver")), 0).argv
    there = container(deployment, launch, "image", ()).command
    for argv in (here, there):
        options = [word.partition("=")[2] for word in argv if "trace-config" in word]
        assert options == list(TRACING)


def test_vllm_in_triton_has_the_variables_of_the_recipe(tmp_path: Path) -> None:
    server = ServerLaunch("vllm", "", "", (), (), "", "pair", environment={"VLLM_LOGGING_LEVEL": "DEBUG"})
    deployment, launch = Deployment("pair", tmp_path, "pair"), TritonLaunch(models=VendorLaunch(server))
    here = launch.here(deployment, TritonInstall(Path("/tritonserver")), 0).environment
    for environment in (here, container(deployment, launch, "image", ()).environment):
        assert environment["VLLM_LOGGING_LEVEL"] == "DEBUG"


def test_no_engine_reserves_memory_for_kv_caches_that_go_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 GiB of each rank, whatever the caller's environment says: here and in a container."""
    monkeypatch.setenv(TRANSFER, "512MB")
    deployment, triton = Deployment("pair", tmp_path, "pair"), TritonInstall(Path("/tritonserver"))
    launch = TritonLaunch()
    started = {**triton.environment(), **launch.here(deployment, triton, 1).environment}
    for environment in (started, container(deployment, launch, "image", ("0",)).environment):
        assert environment[TRANSFER] == "0B"
