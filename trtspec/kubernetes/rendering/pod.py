"""The pod of a server: an init container that pulls the build, and one that serves it."""

from __future__ import annotations

from dataclasses import asdict

from trtspec.deploy import pod as facts
from trtspec.kubernetes.kinds.base import Meta
from trtspec.kubernetes.kinds.pods import (
    Affinity,
    Capabilities,
    ClaimSource,
    ConfigMapSource,
    Container,
    ContainerPort,
    EmptyDirSource,
    Handler,
    HostPathSource,
    HttpGet,
    Lifecycle,
    Mount,
    NodeAffinity,
    NodeSelector,
    NodeTerm,
    ObjectRef,
    PodAntiAffinity,
    PodSecurityContext,
    PodSpec,
    PodTemplate,
    PodTerm,
    Probe,
    Requirement,
    Resources,
    SeccompProfile,
    SecretSource,
    SecurityContext,
    Sleep,
    Spread,
    Toleration,
    Variable,
    VariablesFrom,
    Volume,
    WeightedPodTerm,
)
from trtspec.kubernetes.rendering.labels import STABLE, all_labels, on_track, selector, service_account
from trtspec.kubernetes.values import GpuChoice, Values
from trtspec.kubernetes.workloads import DIGEST
from trtspec.recipe.kubernetes import Claim, HostPath

GPU = "nvidia.com/gpu"
ENGINES = "-engines"
"""Behind the deployment's name that of the claim of the engines' volume."""

PORTS: dict[str, int] = asdict(facts.PORTS)
"""The ports of a server by their names."""

METRICS = "metrics"
"""The name of the one that Prometheus reads."""

_USER = 1000  # NVIDIA's Triton image has it, under the name triton-server
_HOST, _ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
_ENGINES, _RECIPE, _ROLLOUT, _KEYS = "engines", "recipe", "rollout", "api-keys"
_TEMPORARY, _MEMORY = "temporary", "shared-memory"
NOTHING = SecurityContext(
    allow_privilege_escalation=False, read_only_root_filesystem=True, capabilities=Capabilities(drop=["ALL"])
)
"""What a container of trtspec may do beyond an ordinary user."""

NOBODY = PodSecurityContext(
    run_as_non_root=True,
    run_as_user=_USER,
    run_as_group=_USER,
    fs_group=_USER,
    fs_group_change_policy="OnRootMismatch",
    seccomp_profile=SeccompProfile("RuntimeDefault"),
)
"""Who a pod of trtspec is."""


def pod(values: Values, track: str = STABLE) -> PodTemplate:
    """Returns what the pods of a track are made from."""
    tolerated = [GPU] if values.gpu else []
    return PodTemplate(
        Meta(
            labels={**all_labels(values), **on_track(values, track)},
            annotations={**values.annotations, DIGEST: values.digest},
        ),
        PodSpec(
            service_account_name=service_account(values),
            automount_service_account_token=False,
            enable_service_links=False,
            termination_grace_period_seconds=facts.termination_grace_s(values.times.grace_s),
            security_context=NOBODY,
            init_containers=[_puller(values)],
            containers=[_server(values)],
            volumes=_volumes(values),
            image_pull_secrets=[ObjectRef(name) for name in values.image_pull_secrets] or None,
            affinity=_affinity(values),
            node_selector=values.node_selector or None,
            tolerations=[Toleration(key, "Exists") for key in (*tolerated, *values.tolerations)] or None,
            topology_spread_constraints=[Spread(1, _ZONE, "ScheduleAnyway", selector(values))],
            runtime_class_name=values.runtime_class,
            priority_class_name=values.priority_class,
        ),
    )


def _puller(values: Values) -> Container:
    secret = values.store_secret
    return Container(
        name="pull",
        image=values.image,
        image_pull_policy="IfNotPresent",
        args=facts.pull_arguments(values.store, values.digest, values.folder),
        env=[Variable("HOME", str(facts.TEMPORARY))],
        env_from=[VariablesFrom(ObjectRef(secret))] if secret else None,
        resources=Resources(requests={"cpu": "1", "memory": "2Gi"}, limits={"memory": "2Gi"}),
        security_context=NOTHING,
        volume_mounts=[Mount(_ENGINES, str(facts.ENGINES)), Mount(_TEMPORARY, str(facts.TEMPORARY))],
    )


def _server(values: Values) -> Container:
    return Container(
        name="server",
        image=values.image,
        image_pull_policy="IfNotPresent",
        args=facts.serve_arguments(
            values.folder, values.times.grace_s, has_keys=bool(values.api_keys_secret)
        ),
        env=[Variable(name, value) for name, value in facts.ENVIRONMENT.items()],
        ports=[ContainerPort(name, port) for name, port in PORTS.items()],
        resources=_resources(values),
        startup_probe=_probe(facts.startup_probe(values.times.startup_failures)),
        readiness_probe=_probe(facts.READINESS),
        liveness_probe=_probe(facts.LIVENESS),
        lifecycle=Lifecycle(pre_stop=Handler(Sleep(facts.PRE_STOP_S))),
        security_context=NOTHING,
        volume_mounts=[
            Mount(_ENGINES, str(facts.ENGINES), read_only=True),
            Mount(_RECIPE, str(facts.RECIPE.parent), read_only=True),
            Mount(_ROLLOUT, str(facts.ROLLOUT.parent), read_only=True),
            *([Mount(_KEYS, str(facts.API_KEYS.parent), read_only=True)] if values.api_keys_secret else []),
            Mount(_TEMPORARY, str(facts.TEMPORARY)),
            Mount(_MEMORY, str(facts.SHARED_MEMORY)),
        ],
    )


def _probe(probe: facts.Probe) -> Probe:
    return Probe(HttpGet(probe.path, probe.port), probe.period_s, probe.failures, probe.timeout_s)


def _resources(values: Values) -> Resources:
    """Returns what the server asks for; GPUs and memory are not shared, so all that is asked is the limit."""
    host, gpus = values.resources, {GPU: values.gpu.count} if values.gpu else {}
    limit = {"cpu": host.cpu_limit} if host.cpu_limit else {}
    return Resources(
        requests={"cpu": host.cpu, "memory": host.memory, "ephemeral-storage": host.disk, **gpus},
        limits={**limit, "memory": host.memory, **gpus},
    )


def _volumes(values: Values) -> list[Volume]:
    secret = values.api_keys_secret
    return [
        _engines(values),
        Volume(_RECIPE, config_map=ConfigMapSource(values.recipe_map)),
        Volume(_ROLLOUT, config_map=ConfigMapSource(f"{values.name}-rollout", optional=True)),
        *([Volume(_KEYS, secret=SecretSource(secret, default_mode=0o440))] if secret else []),
        Volume(_TEMPORARY, empty_dir=EmptyDirSource()),
        Volume(_MEMORY, empty_dir=EmptyDirSource("Memory", values.resources.shared_memory)),
    ]


def _engines(values: Values) -> Volume:
    volume = values.volume
    if isinstance(volume, HostPath):
        # Were it made by the kubelet, it would belong to root, and nobody here is.
        return Volume(_ENGINES, host_path=HostPathSource(volume.path, "Directory"))
    if isinstance(volume, Claim):
        name = volume.name or f"{values.name}{ENGINES}"
        return Volume(_ENGINES, persistent_volume_claim=ClaimSource(name))
    return Volume(_ENGINES, empty_dir=EmptyDirSource())


def _affinity(values: Values) -> Affinity:
    """Returns nodes with the GPUs that the engines were built for, and other hosts for other pods."""
    apart = WeightedPodTerm(100, PodTerm(selector(values), _HOST))
    return Affinity(gpu_nodes(values.gpu) if values.gpu else None, PodAntiAffinity([apart]))


def gpu_nodes(gpu: GpuChoice) -> NodeAffinity:
    """Returns the nodes with these GPUs."""
    requirements = [
        Requirement("nvidia.com/gpu.product", "In", [gpu.product]),
        Requirement("nvidia.com/gpu.compute.major", "In", [gpu.compute_major]),
    ]
    return NodeAffinity(NodeSelector([NodeTerm(requirements)]))
