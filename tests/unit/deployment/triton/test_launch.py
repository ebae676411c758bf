"""How a Triton is started, by the ranks of its engines, and what its models are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtspec.backends.launch import ServerLaunch
from trtspec.deployment.container import container_of
from trtspec.deployment.deployment import Deployment
from trtspec.deployment.engine_server import EngineServerLaunch
from trtspec.deployment.triton.install import IN_IMAGE as SERVER
from trtspec.deployment.triton.install import TritonInstall
from trtspec.deployment.triton.launch import ENGINE_VARIABLES, TritonLaunch, by_ranks


def test_engines_of_one_rank_need_no_mpi() -> None:
    line = by_ranks([SERVER, "--http-port=8000"], ranks=1, gpus=2)

    assert (line.argv, line.environment) == ((SERVER, "--http-port=8000"), ENGINE_VARIABLES)


def test_several_ranks_make_the_server_an_orchestrator() -> None:
    """As NVIDIA's `launch_triton_server.py --multi-model` has it, but on all processors."""
    line = by_ranks([SERVER, "--http-port=8000"], ranks=2, gpus=3)

    mpirun = ("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "1")
    assert line.argv[:9] == (*mpirun, SERVER, "--http-port=8000")
    assert set(line.argv[9:]) == {
        "--pinned-memory-pool-byte-size=0",
        "--enable-peer-access=false",
        *(f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in range(3)),
    }
    assert line.environment == ENGINE_VARIABLES | {
        "TRTLLM_ORCHESTRATOR": "1",
        "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1",
    }


TRANSFER = "TRTLLM_KVCACHE_TRANSFER_BUFFER_SIZE"
TRACING = ("level=TIMESTAMPS", "triton,file=trace.json")


@pytest.mark.parametrize("json_logs", [False, True])
def test_the_models_log_as_they_are_told(tmp_path: Path, json_logs: bool) -> None:
    deployment = Deployment("pair", tmp_path, "pair", json_logs=json_logs)
    launch = TritonLaunch()
    here = launch.local(deployment, TritonInstall(Path("/tritonserver")), 0).environment
    there = container_of(deployment, launch, "image", ()).environment
    asked = {"TRTSPEC_LOG_FORMAT": "json"} if json_logs else {}
    for environment in (here, there):
        assert {name: value for name, value in environment.items() if "LOG_FORMAT" in name} == asked


def test_triton_traces_as_it_is_told(tmp_path: Path) -> None:
    deployment, launch = Deployment("pair", tmp_path, "pair"), TritonLaunch(trace_config=TRACING)
    here = launch.local(deployment, TritonInstall(Path("/tritonserver")), 0).argv
    there = container_of(deployment, launch, "image", ()).command
    for argv in (here, there):
        options = [word.partition("=")[2] for word in argv if "trace-config" in word]
        assert options == list(TRACING)


def test_vllm_in_triton_has_the_variables_of_the_recipe(tmp_path: Path) -> None:
    server = ServerLaunch("vllm", "", "", (), (), "", "pair", environment={"VLLM_LOGGING_LEVEL": "DEBUG"})
    deployment, launch = Deployment("pair", tmp_path, "pair"), TritonLaunch(models=EngineServerLaunch(server))
    here = launch.local(deployment, TritonInstall(Path("/tritonserver")), 0).environment
    for environment in (here, container_of(deployment, launch, "image", ()).environment):
        assert environment["VLLM_LOGGING_LEVEL"] == "DEBUG"


def test_no_engine_reserves_memory_for_kv_caches_that_go_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 GiB of each rank, whatever the caller's environment says: here and in a container."""
    monkeypatch.setenv(TRANSFER, "512MB")
    deployment, triton = Deployment("pair", tmp_path, "pair"), TritonInstall(Path("/tritonserver"))
    launch = TritonLaunch()
    started = {**triton.environment(), **launch.local(deployment, triton, 1).environment}
    for environment in (started, container_of(deployment, launch, "image", ("0",)).environment):
        assert environment[TRANSFER] == "0B"
