"""Servers that span hosts: a LeaderWorkerSet, and what lets the pods of a group reach each other.

It is rendered from commands that the recipe gives, and nothing here has run on such hosts. `trtspec deploy`
has NVIDIA's C++ backend spawn the ranks of its engines by MPI, which keeps them on one host (its README, on
orchestrator mode). Over hosts they must have been started before, with `participant_ids` in the models'
configurations and `TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES=0`. So the image must have what the commands run, and
MPI's way to the other hosts, such as sshd; the leader finds these by the variables `LWS_LEADER_ADDRESS` and
`LWS_GROUP_SIZE`. Each host pulls the build by itself.
"""

from __future__ import annotations

from dataclasses import replace

from trtspec.kubernetes.kinds.base import Selector
from trtspec.kubernetes.kinds.pods import PodTemplate
from trtspec.kubernetes.kinds.policies import Egress, Ingress, NetworkPolicy, NetworkPolicySpec, SomePods
from trtspec.kubernetes.kinds.workloads import (
    GroupNetwork,
    GroupsSpec,
    GroupStrategy,
    GroupTemplate,
    LeaderWorkerSet,
    RollingUpdate,
)
from trtspec.kubernetes.rendering.access import outward
from trtspec.kubernetes.rendering.labels import COMPONENT, STABLE, meta, of_instance
from trtspec.kubernetes.rendering.pod import pod
from trtspec.kubernetes.values import Group, Values

_WORKER = "worker"
# The Service that all groups would share has the name of the LeaderWorkerSet, which is that of ours: the
# controller makes none where one is, and ours knows neither workers nor who is not ready yet.
_OWN_NAMES = GroupNetwork("UniquePerReplica")


def leader_worker_set(values: Values, group: Group) -> LeaderWorkerSet:
    """Returns groups of which each is a server; one that loses a pod is made anew as a whole."""
    return LeaderWorkerSet(
        meta(values),
        GroupsSpec(
            replicas=None if values.scaling else values.replicas,
            startup_policy="LeaderCreated",
            rollout_strategy=GroupStrategy(
                "RollingUpdate", RollingUpdate(values.max_surge, values.max_unavailable)
            ),
            network_config=_OWN_NAMES,
            leader_worker_template=GroupTemplate(
                size=group.size,
                restart_policy="RecreateGroupOnPodRestart",
                leader_template=_leader(values, group),
                worker_template=_worker(values, group),
            ),
        ),
    )


def group_policy(values: Values) -> NetworkPolicy:
    """Returns a policy by which the pods of a deployment reach each other on any port, as MPI and NCCL do.

    Those that are no servers find the leader by its name and pull the build, so they reach what servers do.
    """
    pods = Selector(of_instance(values))
    return NetworkPolicy(
        meta(values, "-group"),
        NetworkPolicySpec(
            pod_selector=pods,
            policy_types=["Ingress", "Egress"],
            ingress=[Ingress([SomePods(pods)])],
            egress=[*outward(values), Egress(to=[SomePods(pods)])],
        ),
    )


def _leader(values: Values, group: Group) -> PodTemplate:
    template = pod(values, STABLE)
    (server,) = template.spec.containers
    return replace(template, spec=replace(template.spec, containers=[replace(server, args=group.leader)]))


def _worker(values: Values, group: Group) -> PodTemplate:
    """Returns the pod of another host: it takes no requests, so that nobody asks whether it is ready."""
    template = pod(values, STABLE)
    (server,) = template.spec.containers
    worker = replace(
        server,
        name=_WORKER,
        args=group.worker,
        ports=None,
        startup_probe=None,
        readiness_probe=None,
        liveness_probe=None,
        lifecycle=None,
    )
    labels = {**(template.metadata.labels or {}), COMPONENT: _WORKER}
    metadata = replace(template.metadata, labels=labels)
    return replace(template, metadata=metadata, spec=replace(template.spec, containers=[worker]))
