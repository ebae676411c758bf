"""Keeps the state of a canary in a ConfigMap beside it, so that the next command continues from there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from trtspec.base.errors import ClusterError
from trtspec.cluster.kubernetes.canary.evidence import Counted
from trtspec.cluster.kubernetes.cluster import Cluster, Manifest
from trtspec.cluster.kubernetes.resources import CONFIG_MAP, INSTANCE, NAME, Ref

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
