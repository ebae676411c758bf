"""Finds the releases of the chart in a namespace, with their state, and removes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trtspec.base.errors import ClusterError
from trtspec.cluster.kubernetes import pods, workloads
from trtspec.cluster.kubernetes.cluster import Cluster, Manifest
from trtspec.cluster.kubernetes.helm import Helm
from trtspec.cluster.kubernetes.pods import Pod
from trtspec.cluster.kubernetes.refusals import RefusedByCluster
from trtspec.cluster.kubernetes.resources import (
    INSTANCE,
    OURS,
    POD,
    VOLUME_CLAIM,
    Ref,
    Resource,
    of_instance,
)
from trtspec.cluster.kubernetes.troubles import trouble_of
from trtspec.cluster.kubernetes.workloads import WORKLOADS, ReplicaCounts

_END_S = 60.0
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class DeployedWorkload:
    """A workload that trtspec deployed."""

    name: str
    workload: ReplicaCounts
    stages: str
    trouble: str
    """What is wrong with the workload or with a pod that is not ready; empty if nothing is."""

    @property
    def condition(self) -> str:
        """The condition in words: ready, updating, starting, stopped, or in trouble."""
        if self.workload.is_done:
            return "ready" if self.workload.wanted else "stopped"
        if self.trouble:
            return "in trouble"
        return "updating" if self.workload.ready else "starting"

    def as_json(self) -> dict[str, str]:
        workload = self.workload
        return {
            "name": self.name,
            "workload": str(workload.ref),
            "state": self.condition,
            "ready": f"{workload.ready} of {workload.wanted}",
            "build": workload.build[:12],
            "image": workload.image,
            "pods": self.stages,
            "trouble": self.trouble,
        }


def find_deployed(cluster: Cluster) -> list[DeployedWorkload]:
    """Returns trtspec's workloads in the cluster's namespace, by their names."""
    found = []
    for resource in WORKLOADS:
        for manifest in _labelled(cluster, resource):
            instance = manifest["metadata"]["labels"].get(INSTANCE, "")
            labels = (manifest["spec"].get("selector") or {}).get("matchLabels") or of_instance(instance)
            here = pods.newest([pods.parse(each) for each in cluster.labelled(POD, labels)])
            workload = workloads.look(cluster, manifest)
            trouble = workload.denied or _trouble(cluster, here)
            found.append(DeployedWorkload(instance, workload, pods.summary(here), trouble))
    return sorted(found, key=lambda each: (each.name, str(each.workload.ref)))


def find_names(cluster: Cluster) -> list[str]:
    """Returns the names of the deployments in the cluster's namespace."""
    return Helm(cluster).releases()


def stop(cluster: Cluster, name: str, tell: Callable[[str], None]) -> Sequence[Ref]:
    """Stops a deployment, and waits until its pods have ended.

    Returns its volume claims, which are kept. Raises `ClusterError` if pods stay longer than their own grace
    period.
    """
    labels = of_instance(name)
    before = cluster.labelled(POD, labels)
    grace = max((each["spec"].get("terminationGracePeriodSeconds") or 30 for each in before), default=0)
    Helm(cluster).uninstall(name)
    ends = time.monotonic() + grace + _END_S
    while left := cluster.labelled(POD, labels):
        if time.monotonic() >= ends:
            stuck = left[0]["metadata"]["name"]
            repair = f"its node may be gone: kubectl describe pod {stuck} -n {cluster.namespace}"
            problem = f"has not ended {grace + _END_S:.0f} s after its deletion"
            raise ClusterError(f"pod/{stuck}", problem, repair)
        tell(f"waiting for {len(left)} pods to end")
        time.sleep(_LOOK_S)
    return [Ref(VOLUME_CLAIM, each["metadata"]["name"]) for each in cluster.labelled(VOLUME_CLAIM, labels)]


def _labelled(cluster: Cluster, resource: Resource) -> list[Manifest]:
    """Returns trtspec's workloads of one kind, without those that a controller has made from another.

    A kind that is not installed, or that the caller may not see, has none.
    """
    try:
        found = cluster.labelled(resource, OURS)
    except RefusedByCluster as error:
        if error.answer.lacks_kind or (resource.owner and error.answer.is_forbidden):
            return []
        raise
    return [each for each in found if not each["metadata"].get("ownerReferences")]


def _trouble(cluster: Cluster, here: list[Pod]) -> str:
    for pod in here:
        if not pod.is_ready:
            try:
                events = cluster.events("Pod", pod.name)
            except RefusedByCluster:
                events = []
            if found := trouble_of(pod, events, cluster.namespace):
                return f"{found.subject}: {found.problem}"
    return ""
