"""Objects applied to a cluster: all of them checked first, and what is no longer rendered taken away."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from trtspec.errors import ClusterError
from trtspec.kubernetes.cluster import MANAGER, SCALER, Cluster, Manifest
from trtspec.kubernetes.refusals import RefusedByCluster
from trtspec.kubernetes.rendering.labels import MANAGED_BY
from trtspec.kubernetes.resources import (
    APPLIED,
    AUTOSCALERS,
    DEPLOYMENT,
    JOB,
    LEADER_WORKER_SET,
    VOLUME_CLAIM,
    Ref,
    Resource,
    in_order,
    ref_of,
)

_HOLDER = re.compile(r'conflicts? with "([^"]+)"')
OWNED = tuple(each for each in APPLIED if each != JOB)
"""What a deployment is made of; jobs that build its engines are none of it."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was taken away, and what of ours is left since it holds data."""

    gone: tuple[Ref, ...]
    left: tuple[Ref, ...]


def check(
    cluster: Cluster, manifests: Sequence[Manifest], labels: Mapping[str, str], *, force: bool
) -> list[RefusedByCluster]:
    """Asks the cluster whether it would take every object; changes nothing.

    Returns a refusal for each object of a kind that the cluster lacks and that nothing else needs. Raises
    `ClusterError` for an object that is there and has not these labels, and else the first
    `RefusedByCluster`, whose `lines` tell of the others. A webhook that cannot be asked without consequences
    is left for when it counts.
    """
    refused: list[RefusedByCluster] = []
    lacking: list[RefusedByCluster] = []
    for manifest in in_order(manifests):
        try:
            _check_ours(cluster, ref_of(manifest), labels)
            _apply(cluster, manifest, force=force, dry_run=True)
        except RefusedByCluster as error:
            if error.answer.lacks_kind and ref_of(manifest).resource.only_seen_by_others:
                lacking.append(error)
            elif not error.answer.has_no_dry_run:
                refused.append(error)
    if refused:
        first, *others = refused
        # One reason for many objects is said once.
        told = {each.problem: each for each in reversed(others) if each.problem != first.problem}
        first.lines = tuple(f"{each.subject}: {each.problem}" for each in reversed(told.values()))
        raise first
    return lacking


def taken(manifests: Sequence[Manifest], lacking: Sequence[RefusedByCluster]) -> list[Manifest]:
    """Returns the objects without those of kinds that the cluster lacks."""
    subjects = {error.subject for error in lacking}
    return [each for each in manifests if str(ref_of(each)) not in subjects]


def apply(
    cluster: Cluster,
    manifests: Sequence[Manifest],
    labels: Mapping[str, str],
    *,
    force: bool,
    advance: Callable[[int, str], None] = lambda number, what: None,
) -> None:
    """Applies objects. Autoscalers with these labels that are not among them are deleted before.

    Raises `RefusedByCluster` at the first that is not taken; what was applied until then stays.
    """
    wanted = {ref_of(manifest) for manifest in manifests}
    for ref in find(cluster, labels, AUTOSCALERS):
        if ref not in wanted:
            # It would go on to set replicas of what is applied now.
            cluster.delete(ref)
    for manifest in in_order(manifests):
        _hand_over(cluster, manifest)
        _apply(cluster, manifest, force=force)
        advance(1, str(ref_of(manifest)))


def prune(cluster: Cluster, manifests: Sequence[Manifest], labels: Mapping[str, str]) -> Pruned:
    """Deletes the objects with these labels that are not among the manifests; volume claims hold data."""
    wanted = {ref_of(manifest) for manifest in manifests}
    here = [ref for ref in find(cluster, labels) if ref not in wanted]
    gone = [ref for ref in here if ref.resource != VOLUME_CLAIM and cluster.delete(ref)]
    return Pruned(tuple(gone), tuple(ref for ref in here if ref.resource == VOLUME_CLAIM))


def find(cluster: Cluster, labels: Mapping[str, str], resources: Sequence[Resource] = OWNED) -> list[Ref]:
    """Returns the objects with these labels, but for those that a controller has made."""
    return [
        Ref(resource, each["metadata"]["name"])
        for resource in resources
        for each in find_manifests(cluster, labels, resource)
    ]


def find_manifests(cluster: Cluster, labels: Mapping[str, str], resource: Resource) -> list[Manifest]:
    """Returns the same of one kind; what is not installed, or not to be seen, has nothing of ours."""
    try:
        found = cluster.labelled(resource, labels)
    except RefusedByCluster as error:
        if error.answer.lacks_kind or (resource.owner and error.answer.is_forbidden):
            return []
        raise
    return [each for each in found if not each["metadata"].get("ownerReferences")]


def _check_ours(cluster: Cluster, ref: Ref, labels: Mapping[str, str]) -> None:
    found = cluster.find(ref)
    theirs = (found or {}).get("metadata", {}).get("labels") or {}
    if found is not None and any(theirs.get(key) != value for key, value in labels.items()):
        by = f" ({theirs[MANAGED_BY]} manages it)" if theirs.get(MANAGED_BY) else ""
        problem = f"is there already in namespace {cluster.namespace}, and is not ours{by}"
        raise ClusterError(str(ref), problem, "kubernetes.name in the recipe gives ours another name")


def _hand_over(cluster: Cluster, manifest: Manifest) -> None:
    """Keeps the replicas that run where an autoscaler is to set them from here on.

    A field goes when its only manager applies it no more, and the API's default is one replica; so another
    manager takes it before (Kubernetes' documentation, Server-Side Apply, "Transferring ownership").
    """
    ref = ref_of(manifest)
    if ref.resource not in (DEPLOYMENT, LEADER_WORKER_SET) or "replicas" in manifest["spec"]:
        return
    replicas = ((cluster.find(ref) or {}).get("spec") or {}).get("replicas")
    if replicas is None:
        return
    kept = {key: manifest[key] for key in ("apiVersion", "kind")}
    kept |= {"metadata": {"name": ref.name}, "spec": {"replicas": replicas}}
    try:
        cluster.apply(kept, manager=SCALER)
    except RefusedByCluster as error:
        # The autoscaler has set another number since, and has the field.
        if error.answer.status != HTTPStatus.CONFLICT:
            raise


def _no_smaller(cluster: Cluster, manifest: Manifest) -> Manifest:
    """Returns a volume claim with the size that it has already where that is more: none can shrink."""
    from kubernetes.utils.quantity import parse_quantity

    ref = ref_of(manifest)
    if ref.resource != VOLUME_CLAIM or (found := cluster.find(ref)) is None:
        return manifest
    sizes = [each["spec"]["resources"]["requests"]["storage"] for each in (manifest, found)]
    spec = {**manifest["spec"], "resources": {"requests": {"storage": max(sizes, key=parse_quantity)}}}
    return {**manifest, "spec": spec}


def _apply(cluster: Cluster, manifest: Manifest, *, force: bool, dry_run: bool = False) -> None:
    manifest = _no_smaller(cluster, manifest)
    try:
        cluster.apply(manifest, force=force, dry_run=dry_run)
    except RefusedByCluster as error:
        # A roll-out sets replicas in our name by another operation, which is another manager to the server.
        holders = set(_HOLDER.findall(error.answer.message))
        if not holders or not holders <= {MANAGER, SCALER}:
            raise
        cluster.apply(manifest, force=True, dry_run=dry_run)
