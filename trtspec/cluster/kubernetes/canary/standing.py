"""Holds the state of a canary: the steps that it can be at, and the one that a ConfigMap beside it keeps."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from trtspec.base.errors import ClusterError
from trtspec.cluster.kubernetes.canary.evidence import Counted
from trtspec.cluster.kubernetes.cluster import Cluster, Manifest
from trtspec.cluster.kubernetes.resources import CONFIG_MAP, INSTANCE, NAME, Ref
from trtspec.deployment.rollout.steps import STEPS

SHARES = tuple(step.state.share for step in STEPS if step.state.mode == "speculate")
"""The shares of requests that a canary gets, one after the other. 0 is before it, and 1 is after it."""


@dataclass(frozen=True, slots=True)
class PodCounts:
    """Pods of the build that serves, and of the new one."""

    stable: int
    canary: int


def name_of(share: float) -> str:
    return {0.0: "off", 1.0: "all"}.get(share) or f"{share * 100:.3g} %"


def counts_of(share: float, replicas: int) -> PodCounts:
    """Returns the pods for a share of `replicas`; each build has at least one while both serve."""
    if share in (0.0, 1.0):
        return PodCounts(replicas, 0)
    canary = max(1, math.ceil(share * replicas - 0.5))
    return PodCounts(max(1, replicas - canary), canary)


def steps_for(replicas: int, *, has_weights: bool) -> tuple[float, ...]:
    """Returns the shares that this number of replicas allows, from 0 to 1.

    A gateway's weights allow any share. Without them several shares may take the same pods; the largest of
    these is nearest to the real share.
    """
    between = SHARES[1:-1]
    if not has_weights:
        between = tuple({counts_of(share, replicas): share for share in between}.values())
    return (0.0, *between, 1.0)


def moves(now: PodCounts, then: PodCounts, *, surge: bool) -> Iterator[PodCounts]:
    """Yields the counts on the way, one pod at a time, so that requests always have servers.

    With `surge` a new pod starts before an old one ends. Without it there are never more pods than before.
    """
    stable, canary = now.stable, now.canary
    while (stable, canary) != (then.stable, then.canary):
        up = _toward(canary, then.canary), _toward(stable, then.stable)
        grow = (0, max(up[0], 0)) if up[0] > 0 else (max(up[1], 0), 0)
        shrink = (0, min(up[0], 0)) if up[0] < 0 else (min(up[1], 0), 0)
        for change in (grow, shrink) if surge else (shrink, grow):
            if change != (0, 0):
                stable, canary = stable + change[0], canary + change[1]
                yield PodCounts(stable, canary)


def _toward(number: int, goal: int) -> int:
    return (goal > number) - (goal < number)


_KEY, _VERSION = "standing.json", 2


@dataclass(frozen=True, slots=True)
class CanaryState:
    """The state of a canary: two builds that share the requests."""

    share: float
    """The share of requests that the new build has."""
    new: str
    """The digest of the new build."""
    old: str
    """The digest of the build beside it."""
    replicas: int
    """The replicas of the deployment."""
    is_reached: bool = False
    """False while pods still move to this share."""
    since: str | None = None
    """The time of `counted` in ISO 8601."""
    counted: Mapping[str, Counted] = field(default_factory=dict)
    """The counters of the pods at that time, by the pods' names."""
    revision: int | None = None
    """The release's revision before the canary, for going back."""
    mark: str | None = None
    """The version of the ConfigMap that this was read from."""

    @property
    def goes_on(self) -> bool:
        """True if two builds serve, or are about to."""
        return self.share < 1 or not self.is_reached


def ref_of(name: str) -> Ref:
    """Returns the ConfigMap of a deployment's canary."""
    return Ref(CONFIG_MAP, f"{name}-canary")


def read(cluster: Cluster, name: str) -> CanaryState | None:
    """Returns the state of a deployment's canary; None if there is none."""
    ref = ref_of(name)
    found = cluster.find(ref)
    if found is None:
        return None
    try:
        said: dict[str, Any] = json.loads(found["data"][_KEY])
        if said.pop("version") != _VERSION:
            raise ValueError("written by another version of trtspec")
        return CanaryState(**said, mark=found["metadata"].get("resourceVersion"))
    except (KeyError, TypeError, ValueError) as error:
        repair = f"kubectl delete {ref} -n {cluster.namespace}, and {name}-canary with it"
        raise ClusterError(str(ref), f"cannot be read: {error}", repair) from error


def write(cluster: Cluster, name: str, standing: CanaryState) -> CanaryState:
    """Replaces the stored state, and returns it with its new version. Fails if somebody has changed it since
    it was read."""
    cluster.apply(_manifest(name, standing), force=True)
    found = cluster.find(ref_of(name)) or {}
    return replace(standing, mark=found.get("metadata", {}).get("resourceVersion"))


def _manifest(name: str, standing: CanaryState) -> Manifest:
    said = {"version": _VERSION, **asdict(standing)}
    mark = said.pop("mark")
    metadata = {"name": ref_of(name).name, "labels": {NAME: "trtspec", INSTANCE: name}}
    if mark is not None:
        metadata["resourceVersion"] = mark
    data = {_KEY: json.dumps(said, separators=(",", ":"))}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
