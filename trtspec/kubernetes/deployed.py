"""What trtspec has deployed in a namespace: how it stands, and its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trtspec.errors import ClusterError
from trtspec.kubernetes import pods, workloads
from trtspec.kubernetes.applying import OWNED, Pruned, find_manifests, prune
from trtspec.kubernetes.cluster import Cluster
from trtspec.kubernetes.pods import Pod
from trtspec.kubernetes.predictor import find_predictor
from trtspec.kubernetes.refusals import RefusedByCluster
from trtspec.kubernetes.rendering.labels import INSTANCE, MANAGED_BY, NAME
from trtspec.kubernetes.resources import POD, VOLUME_CLAIM
from trtspec.kubernetes.troubles import Event, trouble_of
from trtspec.kubernetes.workloads import WORKLOADS, Workload

_ALL = {NAME: "trtspec", MANAGED_BY: "trtspec"}
_END_S = 60.0
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Deployed:
    """A workload of ours; `trouble` is what is wrong with a pod that is not ready, empty if nothing is."""

    name: str
    workload: Workload
    stages: str
    trouble: str

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


def find_deployed(cluster: Cluster) -> list[Deployed]:
    """Returns the workloads of ours in the cluster's namespace, by their names."""
    found = []
    for resource in WORKLOADS:
        for manifest in find_manifests(cluster, _ALL, resource):
            instance = manifest["metadata"]["labels"].get(INSTANCE, "")
            labels = _pod_labels(manifest) or {**_ALL, INSTANCE: instance}
            here = pods.newest([pods.parse(each) for each in cluster.labelled(POD, labels)])
            workload = workloads.parse(manifest, find_predictor(cluster, manifest))
            trouble = workload.denied or _trouble(cluster, here)
            found.append(Deployed(instance, workload, pods.summary(here), trouble))
    return sorted(found, key=lambda each: (each.name, str(each.workload.ref)))


def find_names(cluster: Cluster) -> list[str]:
    """Returns the names of deployments of which anything but volume claims is in the cluster's namespace."""
    found = set()
    for resource in OWNED:
        if resource == VOLUME_CLAIM:
            continue
        for each in find_manifests(cluster, _ALL, resource):
            found.add(each["metadata"]["labels"].get(INSTANCE, ""))
    return sorted(found)


def stop(cluster: Cluster, name: str, tell: Callable[[str], None]) -> Pruned:
    """Deletes a deployment and waits until its pods have ended; its volume claims are left.

    Raises `ClusterError` where pods stay longer than their own grace.
    """
    labels = {**_ALL, INSTANCE: name}
    before = cluster.labelled(POD, labels)
    grace = max((each["spec"].get("terminationGracePeriodSeconds") or 30 for each in before), default=0)
    pruned, ends = prune(cluster, (), labels), time.monotonic() + grace + _END_S
    while left := cluster.labelled(POD, labels):
        if time.monotonic() >= ends:
            stuck = left[0]["metadata"]["name"]
            repair = f"kubectl describe pod {stuck} -n {cluster.namespace}; its node may be gone"
            problem = f"has not ended {grace + _END_S:.0f} s after it was told to"
            raise ClusterError(f"pod/{stuck}", problem, repair)
        tell(f"{len(left)} pods end")
        time.sleep(_LOOK_S)
    return pruned


def _pod_labels(manifest: Mapping[str, object]) -> dict[str, str]:
    """Returns the labels by which a workload knows its own pods."""
    spec = manifest["spec"]
    assert isinstance(spec, Mapping)
    return dict((spec.get("selector") or {}).get("matchLabels") or {})


def _trouble(cluster: Cluster, here: list[Pod]) -> str:
    for pod in here:
        if not pod.is_ready:
            try:
                events = cluster.events("Pod", pod.name)
            except RefusedByCluster:
                events = []
            told = [Event(each.get("reason") or "", each.get("message") or "") for each in events]
            if found := trouble_of(pod, told, cluster.namespace):
                return f"{found.subject}: {found.problem}"
    return ""
