"""How a server is started, by the ranks of its engines."""

from trtspec.deployment.installed_triton import IN_IMAGE as SERVER
from trtspec.deployment.triton_launch import ENGINE_VARIABLES, by_ranks


def test_engines_of_one_rank_need_no_mpi() -> None:
    line = by_ranks([SERVER, "--http-port=8000"], ranks=1, gpus=2)

    assert (line.argv, line.environment) == ((SERVER, "--http-port=8000"), ENGINE_VARIABLES)


def test_several_ranks_make_the_server_an_orchestrator() -> None:
    """As NVIDIA's `launch_triton_server.py --multi-model` has it, but on all processors."""
    line = by_ranks([SERVER, "--http-port=8000"], ranks=2, gpus=3)

    mpirun = ("mpirun", "--allow-run-as-root", "--bind-to", "none", "-n", "1")
    assert line.argv[:8] == (*mpirun, SERVER, "--http-port=8000")
    assert set(line.argv[8:]) == {
        "--pinned-memory-pool-byte-size=0",
        "--enable-peer-access=false",
        *(f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in range(3)),
    }
    assert line.environment == ENGINE_VARIABLES | {
        "TRTLLM_ORCHESTRATOR": "1",
        "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1",
    }
