"""What the containers of a pod have, whatever they serve: rights, probes, resources, ports and volumes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from trtspec.deploy import pod as facts
from trtspec.kubernetes.kinds.pods import (
    Capabilities,
    ClaimSource,
    Container,
    ContainerPort,
    EmptyDirSource,
    Handler,
    HostPathSource,
    HttpGet,
    Lifecycle,
    Mount,
    ObjectRef,
    PodSecurityContext,
    Probe,
    Resources,
    SeccompProfile,
    SecurityContext,
    Sleep,
    Variable,
    VariablesFrom,
    Volume,
)
from trtspec.kubernetes.values import Values
from trtspec.recipe.kubernetes import Claim, HostPath

GPU = "nvidia.com/gpu"
METRICS, OPENAI = "metrics", "openai"
"""The names of the port that Prometheus reads, and of that of OpenAI's API."""

_USER = 1000  # NVIDIA's Triton image has it, under the name triton-server
_TEMPORARY, _MEMORY = "temporary", "shared-memory"
NOTHING = SecurityContext(
    allow_privilege_escalation=False, read_only_root_filesystem=True, capabilities=Capabilities(drop=["ALL"])
)
"""What a container may do beyond an ordinary user."""

NOBODY = PodSecurityContext(
    run_as_non_root=True,
    run_as_user=_USER,
    run_as_group=_USER,
    fs_group=_USER,
    fs_group_change_policy="OnRootMismatch",
    seccomp_profile=SeccompProfile("RuntimeDefault"),
)
"""Who a pod is."""

TEMPORARY = Mount(_TEMPORARY, str(facts.TEMPORARY))
SCRATCH = (TEMPORARY, Mount(_MEMORY, str(facts.SHARED_MEMORY)))
"""What every server writes to."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What of a pod depends on what is served."""

    server: Container
    volumes: list[Volume]
    init: list[Container] | None = None


class Probes(NamedTuple):
    """The questions whether a server has started, may be asked, and lives."""

    startup: facts.Probe
    readiness: facts.Probe
    liveness: facts.Probe


def ports(values: Values) -> dict[str, int]:
    """Returns the ports of a server by their names: others have one for everything."""
    found: dict[str, int] = asdict(facts.PORTS)
    return {OPENAI: found[OPENAI]} if values.server else found


def kept_name(values: Values) -> str:
    """Returns the name of the volume in which is kept what is served."""
    return "models" if values.server else "engines"


def kept(values: Values) -> Volume:
    """Returns that volume."""
    name, volume = kept_name(values), values.volume
    if isinstance(volume, HostPath):
        # Were it made by the kubelet, it would belong to root, and nobody here is.
        return Volume(name, host_path=HostPathSource(volume.path, "Directory"))
    if isinstance(volume, Claim):
        return Volume(name, persistent_volume_claim=ClaimSource(volume.name or f"{values.name}-{name}"))
    return Volume(name, empty_dir=EmptyDirSource())


def scratch(values: Values) -> tuple[Volume, ...]:
    """Returns the volumes of `SCRATCH`."""
    return (
        Volume(_TEMPORARY, empty_dir=EmptyDirSource()),
        Volume(_MEMORY, empty_dir=EmptyDirSource("Memory", values.resources.shared_memory)),
    )


def server(
    values: Values,
    probes: Probes,
    *,
    args: Sequence[str],
    env: Sequence[Variable],
    mounts: Sequence[Mount],
    command: Sequence[str] | None = None,
    secret: str | None = None,
) -> Container:
    """Returns the container of a server; a `secret` has variables of its own."""
    return Container(
        name="server",
        image=values.image,
        image_pull_policy="IfNotPresent",
        command=command,
        args=args,
        env=env,
        env_from=[VariablesFrom(ObjectRef(secret))] if secret else None,
        ports=[ContainerPort(name, port) for name, port in ports(values).items()],
        resources=_resources(values),
        startup_probe=_probe(probes.startup),
        readiness_probe=_probe(probes.readiness),
        liveness_probe=_probe(probes.liveness),
        lifecycle=Lifecycle(pre_stop=Handler(Sleep(facts.PRE_STOP_S))),
        security_context=NOTHING,
        volume_mounts=[*mounts, *SCRATCH],
    )


def _probe(found: facts.Probe) -> Probe:
    return Probe(HttpGet(found.path, found.port), found.period_s, found.failures, found.timeout_s)


def _resources(values: Values) -> Resources:
    """Returns what the server asks for; GPUs and memory are not shared, so all that is asked is the limit."""
    host, gpus = values.resources, {GPU: values.gpu.count} if values.gpu else {}
    limit = {"cpu": host.cpu_limit} if host.cpu_limit else {}
    return Resources(
        requests={"cpu": host.cpu, "memory": host.memory, "ephemeral-storage": host.disk, **gpus},
        limits={**limit, "memory": host.memory, **gpus},
    )
