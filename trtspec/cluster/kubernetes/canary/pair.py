"""Creates, scales, awaits and deletes the two releases of a canary in the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trtspec.base.errors import ClusterError
from trtspec.cluster.kubernetes import pods, workloads
from trtspec.cluster.kubernetes.canary.standing import PodCounts, moves
from trtspec.cluster.kubernetes.cluster import Cluster
from trtspec.cluster.kubernetes.helm import Helm
from trtspec.cluster.kubernetes.pods import Pod
from trtspec.cluster.kubernetes.resources import CANARY, DEPLOYMENT, POD, STABLE, Ref, of_instance, on_track
from trtspec.cluster.kubernetes.values import Values
from trtspec.cluster.kubernetes.waiting import PodListener, PodWait
from trtspec.cluster.kubernetes.workloads import ReplicaCounts

_WHOLE = 1000  # the sum of a route's weights


@dataclass(slots=True)
class CanaryPair:
    """The release that serves, and the canary's release beside it."""

    cluster: Cluster
    values: Values
    """The values of the new build."""
    listener: PodListener
    helm: Helm = field(init=False)

    def __post_init__(self) -> None:
        self.helm = Helm(self.cluster)

    @property
    def refs(self) -> dict[str, Ref]:
        name = self.values.name
        return {STABLE: Ref(DEPLOYMENT, name), CANARY: Ref(DEPLOYMENT, f"{name}-{CANARY}")}

    @property
    def has_weights(self) -> bool:
        """True if a gateway's route sets each build's share of requests."""
        return self.values.gateway is not None and self.values.gateway.endpoint_picker is None

    @property
    def is_scaled(self) -> bool:
        """True if an autoscaler sets the number of pods of the build that serves."""
        return self.values.scaling is not None

    def workload(self, track: str) -> ReplicaCounts | None:
        found = self.cluster.find(self.refs[track])
        return workloads.parse(found) if found else None

    def served(self) -> tuple[ReplicaCounts, bool]:
        """Returns the Deployment that serves, and whether it serves this build of this recipe.

        Raises `ClusterError` if there is none, or if no release of Helm has made it.
        """
        ref = self.refs[STABLE]
        found = self.cluster.find(ref)
        repair = "trtspec deploy RECIPE --kubernetes"
        if found is None:
            problem = f"is not in namespace {self.cluster.namespace}; a canary needs a deployment that serves"
            raise ClusterError(str(ref), problem, repair)
        if self.helm.revision(ref.name) is None:
            raise ClusterError(
                str(ref), "was not made by a release of Helm, which a canary needs", f"{repair} --force"
            )
        workload = workloads.parse(found)
        is_same = workload.build == self.values.digest and self.values.config_map in _mounted(found)
        return workload, is_same

    def counts(self) -> PodCounts:
        """Returns the current numbers of replicas."""
        stable, canary = self.workload(STABLE), self.workload(CANARY)
        return PodCounts(stable.wanted if stable else 0, canary.wanted if canary else 0)

    def pods(self, track: str) -> list[Pod]:
        found = self.cluster.labelled(POD, on_track(self.values.name, track))
        return [pod for each in found if not (pod := pods.parse(each)).is_ending]

    def shift(self, then: PodCounts) -> None:
        """Scales the pods to these numbers, one at a time, and waits for each before the next."""
        for counts in moves(self.counts(), then, surge=self.values.max_surge > 0):
            self._scale(CANARY, counts.canary)
            self._scale(STABLE, counts.stable)
        self.wait(*(track for track in (STABLE, CANARY) if self.workload(track)))

    def wait(self, *tracks: str) -> None:
        name = self.values.name
        labels = on_track(name, tracks[0]) if len(tracks) == 1 else of_instance(name)
        refs = [self.refs[track] for track in tracks]
        patience_s = float(self.values.times.progress_s)
        PodWait(self.cluster, refs, labels, patience_s, self.listener).run()

    def lead(self, share: float) -> None:
        """Gives the canary a share of the requests if a route has weights."""
        if self.has_weights:
            self.helm.change(self.values.name, {"canaryWeight": round(share * _WHOLE), **self._replicas()})

    def update(self) -> None:
        """Updates the release that serves to the new build, with its current number of pods.

        While the canary exists, the Service and the route lead to it as well.
        """
        self.helm.upgrade(self.values, force=True, settings=self._replicas())
        self.wait(STABLE)

    def settle(self) -> None:
        """Updates the release to what the recipe says, with all its pods."""
        self.helm.upgrade(self.values, force=True)
        self.finish()

    def finish(self) -> None:
        """Waits for the release that serves, and deletes what only its earlier revisions needed."""
        self.wait(STABLE)
        served = self.cluster.find(self.refs[STABLE])
        self.helm.sweep(self.values.name, but=_mounted(served) if served else ())

    def remove_canary(self) -> None:
        self.helm.uninstall(self.refs[CANARY].name)

    def _scale(self, track: str, replicas: int) -> None:
        found = self.workload(track)
        if track == CANARY and (found is None or found.build != self.values.digest):
            if replicas:
                self.helm.upgrade_canary(self.values, replicas)
                self.wait(track)
        elif found and found.wanted != replicas:
            self.cluster.merge(self.refs[track], {"spec": {"replicas": replicas}})
            if replicas > found.wanted:
                self.wait(track)

    def _replicas(self) -> dict[str, int]:
        return {} if self.is_scaled else {"replicas": self.counts().stable}


def _mounted(workload: Mapping[str, Any]) -> list[str]:
    """Returns the names of the ConfigMaps that the pods of a workload mount."""
    volumes = workload["spec"]["template"]["spec"].get("volumes") or ()
    return [each["configMap"]["name"] for each in volumes if "configMap" in each]
