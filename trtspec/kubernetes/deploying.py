"""A deployment brought to a cluster: checked, applied, waited for, and rid of what it no longer has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from trtspec.errors import ClusterError, RefusedError
from trtspec.kubernetes import applying, waiting
from trtspec.kubernetes.applying import Pruned
from trtspec.kubernetes.canary.standing import read
from trtspec.kubernetes.cluster import Cluster, Manifest
from trtspec.kubernetes.kinds.base import Object, document
from trtspec.kubernetes.rendering.labels import INSTANCE, ours
from trtspec.kubernetes.resources import ref_of
from trtspec.kubernetes.values import Values
from trtspec.kubernetes.waiting import Listener
from trtspec.kubernetes.workloads import WORKLOADS


class Talk(Protocol):
    """Is told what becomes of a deployment."""

    def left_out(self, error: ClusterError) -> None:
        """Called for an object that the cluster does not know, and that nothing else needs."""
        ...

    def applying(self, number: int) -> AbstractContextManager[Callable[[int, str], None]]:
        """Returns a context to apply so many objects in; it yields what to call for each."""
        ...

    def waiting(self) -> AbstractContextManager[Listener]:
        """Returns a context to wait for pods in."""
        ...


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is brought to a cluster: objects, the labels that all of them have, and a patience.

    `patience_s` is how long nothing may get better until pods are given up.
    """

    manifests: Sequence[Manifest]
    labels: Mapping[str, str]
    patience_s: float


def deployment(values: Values, objects: Iterable[Object], timeout: float | None) -> Deployment:
    """Returns the deployment of a recipe; `timeout` is the patience, if not the one that its build asks."""
    manifests = [document(each) for each in objects]
    return Deployment(manifests, ours(values), timeout or float(values.times.progress_s))


def deploy(cluster: Cluster, made: Deployment, talk: Talk, *, force: bool) -> Pruned:
    """Returns when all of it serves; raises `ClusterError` where it is not taken or does not come up.

    Raises `RefusedError` while a canary goes on, whose pods would be taken away. What pods of before an
    update need goes only when none of these is left.
    """
    name = made.labels[INSTANCE]
    if (standing := read(cluster, name)) and standing.goes_on:
        problem = "a new build is being tried beside it"
        raise RefusedError(name, problem, "trtspec rollout canary status RECIPE; next or off ends that")
    lacking = applying.check(cluster, made.manifests, made.labels, force=force)
    for error in lacking:
        talk.left_out(error)
    wanted = applying.taken(made.manifests, lacking)
    with talk.applying(len(wanted)) as advance:
        applying.apply(cluster, wanted, made.labels, force=force, advance=advance)
    workloads = [ref for each in wanted if (ref := ref_of(each)).resource in WORKLOADS]
    with talk.waiting() as listener:
        waiting.wait(cluster, workloads, made.labels, made.patience_s, listener)
    return applying.prune(cluster, wanted, made.labels)
