"""The command line that starts a Triton server for one build; pure.

It is that of TensorRT-LLM's `triton_backend/scripts/launch_triton_server.py`, in the mode that fits the
engines:

* One rank each: the server alone. TensorRT-LLM is the leader of its own MPI world, in the server's process.
* Several ranks: orchestrator mode, NVIDIA's `--multi-model`, which is required as soon as two models are not
  of one rank each (TensorRT-LLM #3797). `mpirun` starts one server, which starts a worker for each rank. It
  would bind a process that is alone to one core (Open MPI, `mpirun(1)`), where the coordinator and a draft on
  the CPU would have to do with that, and refuse workers for which there is no core each, as in a container of
  few; so it is told not to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trtspec.deployment.build import DeployedBuild
from trtspec.deployment.deployment import Deployment, rollout_file
from trtspec.deployment.engine_server import EngineServerLaunch
from trtspec.deployment.place import ANY, LaunchCommand
from trtspec.deployment.triton.install import IN_IMAGE, PREFIX, TritonInstall
from trtspec.gateway.client_bounds import MAX_BODY
from trtspec.gateway.ports import LOOPBACK
from trtspec.pipeline.containers.container import Container, name_for
from trtspec.pipeline.machine.host import image_runtime
from trtspec.recipe.releases import release_of
from trtspec.serving.rollout.state import ROLLOUT
from trtspec.serving.triton.agreement import HEADER_PATTERN, NAMING, STOPPING
from trtspec.serving.triton.logs import LOG_FORMAT

KEY_HEADER = "trtspec-key"
"""The header of HTTP and gRPC requests to the APIs that change the server; it carries the key."""

ENGINE_VARIABLES = {"TRTLLM_KVCACHE_TRANSFER_BUFFER_SIZE": "0B"}
"""What NVIDIA's C++ backend is told: to reserve no GPU memory for KV caches that go to other servers.

It makes each of its executors ready for that (`getExecutorConfigFromParams` of model_instance_state.cc), with
two buffers of 512 MB on every rank (`CacheTransBufferManager` of cacheTransBuffer.cpp) that nothing uses.
With 0B there are none, from release 1.0 on, and the memory of a plan has none either.
"""

# The APIs that change the server, or let a client into its memory; perf_analyzer reads the others.
_CLOSED = "model-repository,shared-memory,logging,trace"


@dataclass(frozen=True, slots=True)
class TritonLaunch:
    """The start of Triton for a build."""

    ranks: int = 1
    """The ranks of the engine that has the most in NVIDIA's C++ backend; 1 if nothing runs in it."""
    loads_one_by_one: bool = False
    """No two engines are loaded at once. Two of one rank in NVIDIA's C++ backend would make MPI groups with
    the same tag.
    """
    trace_config: tuple[str, ...] = ()
    """Each is an option of Triton's."""
    rollout: Path | None = None
    """The file of a roll-out; it is in the build if this is None."""
    models: EngineServerLaunch | None = None
    """The models that vLLM loads in Triton; None where the build has engines."""

    def local(
        self, deployment: Deployment, triton: TritonInstall, gpus: int, memory: str = PREFIX
    ) -> LaunchCommand:
        """Returns the command for this machine, which has so many GPUs, with the variables that it needs.

        The ports of `deployment` are those behind the front, and `memory` begins the names of the server's
        shared memory.
        """
        server = [str(triton.server), *self._options(deployment, LOOPBACK, memory, has_gpus=gpus > 0)]
        if triton.backends:
            server.append(f"--backend-directory={triton.backends}")
        started = by_ranks(server, self.ranks, gpus)
        environment = {**triton.variables, **started.environment, **self._environment(deployment)}
        return LaunchCommand(started.argv, environment, {NAMING: deployment.naming})

    def in_container(self, deployment: Deployment, gpus: int) -> LaunchCommand:
        """Returns the command for a container of NVIDIA's image.

        The server listens on every address of the container's own network.
        """
        server = [IN_IMAGE, *self._options(deployment, ANY, PREFIX, has_gpus=gpus > 0)]
        started = by_ranks([*server, f"--http-max-input-size={MAX_BODY}"], self.ranks, gpus)
        stopping = {STOPPING: stopping_file(deployment)}
        environment = {**stopping, **started.environment, **self._environment(deployment)}
        return LaunchCommand(started.argv, environment, {NAMING: deployment.naming})

    def mounted(self, made: Container) -> Container:
        return self.models.mounted(made) if self.models else made

    def check_image(self, build: DeployedBuild) -> None:
        if self.models:
            self.models.check_image(build)
        else:
            build.check(image_runtime(release_of(build.recipe.engine.release)))

    def _environment(self, deployment: Deployment) -> dict[str, str]:
        """Returns the variables of the models' own engine, and those that tell models of the deployment."""
        own = self.models.launch.environment if self.models else {}
        logs = {LOG_FORMAT: "json"} if deployment.json_logs else {}
        return {**own, ROLLOUT: str(self.rollout or rollout_file(deployment.build)), **logs}

    def _options(self, deployment: Deployment, address: str, memory: str, *, has_gpus: bool) -> list[str]:
        """Returns the options of a server that listens on this address.

        `memory` begins the names of the shared memory that the server makes. Every user of the machine can
        read the deployment's key in the options; it keeps clients on the network out.
        """
        ports = deployment.ports
        options = [
            f"--model-repository={deployment.repository}",
            # In this mode a server that is to end can be made unready before it does.
            "--model-control-mode=explicit",
            "--load-model=*",
            f"--backend-config=python,stub-timeout-seconds={deployment.start_s:.0f}",
            f"--backend-config=python,shm-region-prefix-name={memory}",
            "--disable-auto-complete-config",
            f"--exit-timeout-secs={deployment.grace_s:.0f}",
            f"--http-address={address}",
            f"--grpc-address={address}",
            f"--metrics-address={address}",
            f"--http-port={ports.http}",
            f"--grpc-port={ports.grpc}",
            f"--metrics-port={ports.metrics}",
            f"--http-header-forward-pattern={HEADER_PATTERN}",
            f"--grpc-header-forward-pattern={HEADER_PATTERN}",
            f"--http-restricted-api={_CLOSED}:{KEY_HEADER}={deployment.key}",
            f"--grpc-restricted-protocol={_CLOSED}:{KEY_HEADER}={deployment.key}",
            *(f"--trace-config={option}" for option in self.trace_config),
        ]
        if self.loads_one_by_one:
            options.append("--model-load-thread-count=1")
        return options if has_gpus else [*options, "--allow-gpu-metrics=false"]


def by_ranks(server: Sequence[str], ranks: int, gpus: int) -> LaunchCommand:
    """Returns the command that starts `server`, which is tritonserver with its options.

    In orchestrator mode the GPUs, of which the server sees so many, belong to the workers, so the server
    reserves no memory there.
    """
    if ranks == 1:
        return LaunchCommand(tuple(server), ENGINE_VARIABLES)
    mpirun = ("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "1")
    pools = [f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in range(gpus)]
    alone = ("--pinned-memory-pool-byte-size=0", "--enable-peer-access=false", *pools)
    orchestrator = {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1"}
    return LaunchCommand((*mpirun, *server, *alone), {**ENGINE_VARIABLES, **orchestrator})


def stopping_file(deployment: Deployment) -> str:
    """Returns the path, in a container, of the file that tells the model that the server is to stop."""
    return f"/tmp/{name_for(deployment.container_name, deployment.build)}-stopping"  # noqa: S108
