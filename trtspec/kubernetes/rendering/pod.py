"""The pod of a server: where it may run and who it is; what it serves has its containers and volumes."""

from __future__ import annotations

from trtspec.deploy import pod as facts
from trtspec.kubernetes.kinds.base import Meta
from trtspec.kubernetes.kinds.pods import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeTerm,
    ObjectRef,
    PodAntiAffinity,
    PodSpec,
    PodTemplate,
    PodTerm,
    Requirement,
    Spread,
    Toleration,
    WeightedPodTerm,
)
from trtspec.kubernetes.rendering import engines, server
from trtspec.kubernetes.rendering.labels import STABLE, all_labels, on_track, selector, service_account
from trtspec.kubernetes.rendering.parts import GPU, NOBODY, Parts
from trtspec.kubernetes.values import GpuChoice, Values
from trtspec.kubernetes.workloads import DIGEST

_HOST, _ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"


def pod(values: Values, track: str = STABLE) -> PodTemplate:
    """Returns what the pods of a track are made from."""
    parts, tolerated = _parts(values), [GPU] if values.gpu else []
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
            init_containers=parts.init,
            containers=[parts.server],
            volumes=parts.volumes,
            image_pull_secrets=[ObjectRef(name) for name in values.image_pull_secrets] or None,
            affinity=_affinity(values),
            node_selector=values.node_selector or None,
            tolerations=[Toleration(key, "Exists") for key in (*tolerated, *values.tolerations)] or None,
            topology_spread_constraints=[Spread(1, _ZONE, "ScheduleAnyway", selector(values))],
            runtime_class_name=values.runtime_class,
            priority_class_name=values.priority_class,
        ),
    )


def _parts(values: Values) -> Parts:
    if values.server:
        return server.parts(values, values.server)
    assert values.engines
    return engines.parts(values, values.engines)


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
