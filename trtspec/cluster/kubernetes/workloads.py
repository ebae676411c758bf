"""Reads a workload's desired and actual numbers of pods from the API server's objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trtspec.cluster.kubernetes.cluster import Cluster, Manifest
from trtspec.cluster.kubernetes.resources import (
    DEPLOYMENT,
    INFERENCE_SERVICE,
    LEADER_WORKER_SET,
    Ref,
    Resource,
    ref_of,
)

DIGEST = "trtspec/digest"
"""The annotation of a template with the digest of the build that its pods serve."""

WORKLOADS: tuple[Resource, ...] = (DEPLOYMENT, LEADER_WORKER_SET, INFERENCE_SERVICE)
"""The kinds that have pods; trtspec waits for these."""


@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """The counts of a workload's replicas."""

    ref: Ref
    wanted: int
    """The desired number of replicas."""
    updated: int
    """The number of replicas that are of the newest template."""
    ready: int
    """The number of replicas that serve."""
    total: int
    """The number of all replicas, including those of older templates."""
    is_seen: bool
    """True if the controller has seen the newest manifest."""
    denied: str = ""
    """The reason why the controller cannot make pods."""
    image: str = ""
    build: str = ""
    """The digest of the build that the newest template serves."""

    @property
    def is_done(self) -> bool:
        """True if all replicas are of the newest template and ready, and no other is left."""
        counts = self.updated, self.ready, self.total
        return self.is_seen and all(number == self.wanted for number in counts)


def look(cluster: Cluster, manifest: Manifest) -> ReplicaCounts:
    """Returns the workload of an object; an InferenceService has the counts of KServe's Deployment."""
    ref = ref_of(manifest)
    if ref.resource != INFERENCE_SERVICE:
        return parse(manifest)
    return parse(manifest, cluster.find(Ref(DEPLOYMENT, f"{ref.name}-predictor")))


def parse(manifest: Mapping[str, Any], predictor: Mapping[str, Any] | None = None) -> ReplicaCounts:
    """Returns the workload from the API server's object; `predictor` is the Deployment that KServe made."""
    ref, metadata, spec = ref_of(manifest), manifest["metadata"], manifest["spec"]
    status = manifest.get("status") or {}
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    if ref.resource == INFERENCE_SERVICE:
        is_ready = (conditions.get("Ready") or {}).get("status") == "True"
        return _of_kserve(ref, spec.get("predictor") or {}, predictor, is_ready=is_ready)
    wanted = spec.get("replicas", 1)
    failure = conditions.get("ReplicaFailure") or {}
    # Other controllers than Kubernetes' own need not report what they have seen.
    unseen = 0 if ref.resource == DEPLOYMENT else metadata.get("generation", 0)
    return ReplicaCounts(
        ref,
        wanted,
        status.get("updatedReplicas") or 0,
        status.get("readyReplicas") or 0,
        status.get("replicas") or 0,
        status.get("observedGeneration", unseen) == metadata.get("generation", 0),
        (failure.get("message") or failure.get("reason") or "") if failure.get("status") == "True" else "",
        **_served(spec),
    )


def _of_kserve(
    ref: Ref, wanted: Mapping[str, Any], predictor: Mapping[str, Any] | None, *, is_ready: bool
) -> ReplicaCounts:
    """Returns an InferenceService with the counts of its Deployment.

    The service's own status counts the generations of that Deployment, and may be older than an update.
    """
    if predictor is None:
        return ReplicaCounts(ref, wanted.get("minReplicas", 1), 0, 0, 0, is_seen=False)
    made = parse(predictor)
    is_newest = made.build == ((wanted.get("annotations") or {}).get(DIGEST) or "")
    return replace(made, ref=ref, ready=made.ready if is_ready else 0, is_seen=made.is_seen and is_newest)


def _served(spec: Mapping[str, Any]) -> dict[str, str]:
    """Returns the image and the build of a workload's template."""
    template = spec.get("template") or (spec.get("leaderWorkerTemplate") or {}).get("workerTemplate") or {}
    containers = (template.get("spec") or {}).get("containers") or [{}]
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    return {"image": containers[0].get("image") or "", "build": annotations.get(DIGEST) or ""}
