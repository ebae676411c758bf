"""The command line that starts a Triton server for one build; pure.

It is that of TensorRT-LLM's `triton_backend/scripts/launch_triton_server.py`, in the mode that fits the
engines:

* One rank each: the server alone. TensorRT-LLM is the leader of its own MPI world, in the server's process.
* Several ranks: orchestrator mode, NVIDIA's `--multi-model`, which is required as soon as two models are not
  of one rank each (TensorRT-LLM #3797). `mpirun` starts one server, which starts a worker for each rank. It
  would bind a process that is alone to one core (Open MPI, `mpirun(1)`), where the coordinator and a draft on
  the CPU would have to do with that; so it is told not to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SERVER = "/opt/tritonserver/bin/tritonserver"
"""The path of tritonserver in NVIDIA's image."""

ENGINE_VARIABLES = {"TRTLLM_KVCACHE_TRANSFER_BUFFER_SIZE": "0B"}
"""What NVIDIA's C++ backend is told: to reserve no GPU memory for KV caches that go to other servers.

It makes each of its executors ready for that (`getExecutorConfigFromParams` of model_instance_state.cc), with
two buffers of 512 MB on every rank (`CacheTransBufferManager` of cacheTransBuffer.cpp) that nothing uses.
With 0B there are none, from release 1.0 on, and the memory of a plan has none either.
"""


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """A command that starts a server.

    It runs in the build directory: the C++ backend finds engines relative to the server's folder.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """The variables that it needs beside those that are set already."""


def launch(server: Sequence[str], ranks: int, gpus: int) -> LaunchCommand:
    """Returns the command that starts `server`, which is tritonserver with its options.

    `ranks` is the number of ranks of the engine that has the most of them in NVIDIA's C++ backend, 1 if
    nothing runs in it; `gpus` is how many GPUs the server sees. In orchestrator mode the GPUs belong to the
    workers, so the server reserves no memory there.
    """
    if ranks == 1:
        return LaunchCommand(tuple(server), ENGINE_VARIABLES)
    pools = [f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in range(gpus)]
    return LaunchCommand(
        (
            *("mpirun", "--allow-run-as-root", "--bind-to", "none", "-n", "1"),
            *server,
            "--pinned-memory-pool-byte-size=0",
            "--enable-peer-access=false",
            *pools,
        ),
        {**ENGINE_VARIABLES, "TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1"},
    )
