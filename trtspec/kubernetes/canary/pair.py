"""The two workloads of a canary as they are in the cluster: made, scaled, waited for, taken away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trtspec.errors import ClusterError
from trtspec.kubernetes import applying, pods, waiting, workloads
from trtspec.kubernetes.canary import traffic
from trtspec.kubernetes.canary.steps import Counts, moves
from trtspec.kubernetes.cluster import Cluster, Manifest
from trtspec.kubernetes.kinds.base import document
from trtspec.kubernetes.pods import Pod
from trtspec.kubernetes.rendering.labels import CANARY, STABLE, on_track, ours
from trtspec.kubernetes.rendering.workload import deployment
from trtspec.kubernetes.resources import CONFIG_MAP, DEPLOYMENT, POD, Ref, ref_of
from trtspec.kubernetes.values import Values
from trtspec.kubernetes.waiting import Listener
from trtspec.kubernetes.workloads import Workload


@dataclass(slots=True)
class Pair:
    """The Deployment that serves and the canary beside it; `manifests` are what the recipe makes."""

    cluster: Cluster
    values: Values
    manifests: list[Manifest]
    listener: Listener
    labels: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.labels = ours(self.values)

    @property
    def refs(self) -> dict[str, Ref]:
        name = self.values.name
        return {STABLE: Ref(DEPLOYMENT, name), CANARY: Ref(DEPLOYMENT, f"{name}-{CANARY}")}

    @property
    def patience_s(self) -> float:
        return float(self.values.times.progress_s)

    def workload(self, track: str) -> Workload | None:
        found = self.cluster.find(self.refs[track])
        return workloads.parse(found) if found else None

    def served(self) -> Manifest:
        """Returns the Deployment that serves; raises `ClusterError` where there is none."""
        ref = self.refs[STABLE]
        found = self.cluster.find(ref)
        if found is None:
            problem = f"is not in namespace {self.cluster.namespace}, so that nothing can be beside it"
            raise ClusterError(str(ref), problem, "trtspec deploy RECIPE --kubernetes")
        return found

    def counts(self) -> Counts:
        """Returns how many pods are wanted now."""
        stable, canary = self.workload(STABLE), self.workload(CANARY)
        return Counts(stable.wanted if stable else 0, canary.wanted if canary else 0)

    def pods(self, track: str) -> list[Pod]:
        found = self.cluster.labelled(POD, on_track(self.values, track))
        return [pod for each in found if not (pod := pods.parse(each)).is_ending]

    def check(self) -> None:
        """Asks the cluster whether it would take the canary, and all of the new build in the end."""
        applying.check(self.cluster, [*self.manifests, self._canary(1)], self.labels, force=True)

    def shift(self, then: Counts) -> None:
        """Brings the pods to these numbers, one at a time, each waited for before the next move."""
        for counts in moves(self.counts(), then, surge=self.values.max_surge > 0):
            self._scale(CANARY, counts.canary)
            self._scale(STABLE, counts.stable)
        self.wait(*(track for track in (STABLE, CANARY) if self.workload(track)))

    def wait(self, *tracks: str) -> None:
        labels = on_track(self.values, tracks[0]) if len(tracks) == 1 else self.labels
        refs = [self.refs[track] for track in tracks]
        waiting.wait(self.cluster, refs, labels, self.patience_s, self.listener)

    def lead(self, share: float) -> None:
        """Gives the canary a share of the requests where the recipe has a route with weights."""
        if route := traffic.route_of(self.manifests):
            for manifest in traffic.services(self.values):
                self.cluster.apply(manifest, force=True)
            self.cluster.apply(traffic.weighted(route, self.values.name, share), force=True)

    def lead_back(self) -> None:
        """Leads all requests to the Service of the deployment, as without a canary."""
        if route := traffic.route_of(self.manifests):
            self.cluster.apply(route, force=True)

    def update(self, stable: int) -> None:
        """Makes the Deployment that serves one of the new build, a pod at a time, with so many replicas."""
        ref = self.refs[STABLE]
        for manifest in self.manifests:
            if ref_of(manifest) == ref and "replicas" in manifest["spec"]:
                manifest = {**manifest, "spec": {**manifest["spec"], "replicas": stable}}
            if ref_of(manifest).resource in (CONFIG_MAP, DEPLOYMENT):
                self.cluster.apply(manifest, force=True)
        self.wait(STABLE)

    def remove_canary(self) -> None:
        self.cluster.delete(self.refs[CANARY])
        for ref in traffic.service_refs(self.values.name):
            self.cluster.delete(ref)

    def snapshot(self) -> list[Manifest]:
        """Returns the Deployment that serves and the ConfigMaps that its pods mount, to be applied again."""
        served = self.served()
        maps = [self.cluster.find(ref) for ref in mounted(served)]
        kept = [each for each in maps if each and self.labels.items() <= _labels(each).items()]
        return [_applicable(each) for each in (*kept, served)]

    def _scale(self, track: str, replicas: int) -> None:
        found = self.workload(track)
        if found is None:
            if replicas:
                for manifest in self.manifests:
                    if manifest["metadata"]["name"] == self.values.config_map:
                        self.cluster.apply(manifest, force=True)
                self.cluster.apply(self._canary(replicas), force=True)
                self.wait(track)
        elif found.wanted != replicas:
            self.cluster.merge(self.refs[track], {"spec": {"replicas": replicas}})
            if replicas > found.wanted:
                self.wait(track)

    def _canary(self, replicas: int) -> Manifest:
        made = document(deployment(self.values, CANARY))
        made["spec"]["replicas"] = replicas
        return made


def mounted(workload: Mapping[str, Any]) -> list[Ref]:
    """Returns the ConfigMaps that the pods of a workload mount."""
    volumes = workload["spec"]["template"]["spec"].get("volumes") or ()
    return [Ref(CONFIG_MAP, each["configMap"]["name"]) for each in volumes if "configMap" in each]


def _labels(manifest: Manifest) -> dict[str, str]:
    return manifest["metadata"].get("labels") or {}


def _applicable(manifest: Manifest) -> Manifest:
    """Returns an object of the cluster without what only the API server says of it."""
    metadata = manifest["metadata"]
    kept = {key: metadata[key] for key in ("name", "labels", "annotations") if key in metadata}
    rest = {key: value for key, value in manifest.items() if key not in ("metadata", "status")}
    return {**rest, "metadata": kept}
