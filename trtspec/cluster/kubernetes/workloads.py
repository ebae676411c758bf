"""Reads how many pods workloads have, and waits until these run as they were applied, or raises why not."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from trtspec.base.causes import find_cause
from trtspec.base.errors import ClusterError
from trtspec.cluster.kubernetes import pods
from trtspec.cluster.kubernetes.cluster import Cluster, Manifest, UnreachableError
from trtspec.cluster.kubernetes.objects import (
    DEPLOYMENT,
    INFERENCE_SERVICE,
    LEADER_WORKER_SET,
    POD,
    Ref,
    Resource,
    ref_of,
)
from trtspec.cluster.kubernetes.pods import Pod
from trtspec.cluster.kubernetes.refusals import RefusedByCluster
from trtspec.cluster.kubernetes.troubles import Trouble, denied, trouble_of, unready
from trtspec.deployment.server import CAUSES

DIGEST = "trtspec/digest"
"""The annotation of a template with the digest of the build that its pods serve."""

WORKLOADS: tuple[Resource, ...] = (DEPLOYMENT, LEADER_WORKER_SET, INFERENCE_SERVICE)
"""The kinds that have pods; trtspec waits for these."""

LOOK_S = 2.0
LOG_LINES = 12
_READ_LINES = 400  # a cause is reported before its consequences
_ABSENCE_S = 60.0
_ASKED = 3
"""Events are requested for at most this many pods; a problem of a hundred pods is one of the first as
well."""


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


def look_at(cluster: Cluster, manifest: Manifest) -> ReplicaCounts:
    """Returns the workload of an object; an InferenceService has the counts of KServe's Deployment."""
    ref = ref_of(manifest)
    if ref.resource != INFERENCE_SERVICE:
        return parse_workload(manifest)
    return parse_workload(manifest, cluster.find(Ref(DEPLOYMENT, f"{ref.name}-predictor")))


def parse_workload(manifest: Mapping[str, Any], predictor: Mapping[str, Any] | None = None) -> ReplicaCounts:
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
        **_image_and_build(spec),
    )


def _of_kserve(
    ref: Ref, wanted: Mapping[str, Any], predictor: Mapping[str, Any] | None, *, is_ready: bool
) -> ReplicaCounts:
    """Returns an InferenceService with the counts of its Deployment.

    The service's own status counts the generations of that Deployment, and may be older than an update.
    """
    if predictor is None:
        return ReplicaCounts(ref, wanted.get("minReplicas", 1), 0, 0, 0, is_seen=False)
    made = parse_workload(predictor)
    is_newest = made.build == ((wanted.get("annotations") or {}).get(DIGEST) or "")
    return replace(made, ref=ref, ready=made.ready if is_ready else 0, is_seen=made.is_seen and is_newest)


def _image_and_build(spec: Mapping[str, Any]) -> dict[str, str]:
    """Returns the image and the build of a workload's template."""
    template = spec.get("template") or (spec.get("leaderWorkerTemplate") or {}).get("workerTemplate") or {}
    containers = (template.get("spec") or {}).get("containers") or [{}]
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    return {"image": containers[0].get("image") or "", "build": annotations.get(DIGEST) or ""}


class PodListener(Protocol):
    """Is notified of the progress of the pods."""

    def stands(self, ready: int, wanted: int, words: str) -> None:
        """Called after every check."""
        ...

    def troubled(self, trouble: Trouble) -> None:
        """Called once for each problem that may pass."""
        ...


class _NotUpError(ClusterError):
    """Raised for pods that do not start. The end of `log` is shown, and it may have a known cause."""

    def __init__(self, trouble: Trouble, log: Sequence[str]) -> None:
        problem, repair = trouble.problem, trouble.repair
        if cause := find_cause(CAUSES, "\n".join(log)):
            problem, repair = f"{problem}: {cause[0]}", cause[1]
        super().__init__(trouble.subject, problem, repair)
        self.lines = tuple(log[-LOG_LINES:])


class PodWait:
    """Waits until all replicas of workloads are ready and none of an older template is left.

    `labels` select their pods. A problem that cannot pass ends the wait at once; others may last as long as
    each can, or `seconds` without progress.
    """

    def __init__(
        self,
        cluster: Cluster,
        refs: Sequence[Ref],
        labels: Mapping[str, str],
        seconds: float,
        listener: PodListener,
    ) -> None:
        self._cluster, self._refs, self._labels, self._listener = cluster, refs, labels, listener
        self._seconds, self._best, self._ends = seconds, -1, 0.0
        self._since: dict[tuple[str, str], float] = {}
        self._reported: set[str] = set()
        self._absent_since: float | None = None

    def run(self) -> None:
        """Raises `ClusterError` with the reason if they do not start."""
        while True:
            try:
                if self._look():
                    return
                self._absent_since = None
            except (UnreachableError, RefusedByCluster) as error:
                self._bear(error)
            time.sleep(LOOK_S)

    def _look(self) -> bool:
        now = time.monotonic()
        cluster = self._cluster
        found = [look_at(cluster, one) for ref in self._refs if (one := cluster.find(ref))]
        if len(found) < len(self._refs):
            gone = set(self._refs) - {each.ref for each in found}
            raise ClusterError(str(min(gone, key=str)), "was deleted while trtspec waited for it")
        all_pods = [pods.parse(each) for each in self._cluster.labelled(POD, self._labels)]
        new = pods.newest(all_pods)
        ready, wanted = sum(each.ready for each in found), sum(each.wanted for each in found)
        if (good := ready + sum(each.updated for each in found)) > self._best:
            self._best, self._ends = good, now + self._seconds
        self._listener.stands(min(ready, wanted), wanted, pods.summary(new))
        if all(each.is_done for each in found):
            return True
        troubles = self._troubles(found, new)
        for trouble in troubles:
            self._judge(trouble, now)
        # A problem that has passed is forgotten; if it comes back, it has its whole time again.
        lasting = {_key(trouble) for trouble in troubles}
        self._since = {key: since for key, since in self._since.items() if key in lasting}
        if now >= self._ends:
            self._give_up(troubles, new)
        return False

    def _troubles(self, found: list[ReplicaCounts], new: list[Pod]) -> list[Trouble]:
        namespace = self._cluster.namespace
        troubles = [denied(str(each.ref), each.denied, namespace) for each in found if each.denied]
        for number, pod in enumerate(sorted((pod for pod in new if not pod.is_ready), key=_worst_first)):
            events = self._cluster.events("Pod", pod.name) if number < _ASKED else []
            if trouble := trouble_of(pod, events, namespace):
                troubles.append(trouble)
        return troubles

    def _judge(self, trouble: Trouble, now: float) -> None:
        since = self._since.setdefault(_key(trouble), now)
        if now - since >= trouble.passes_within_s:
            raise _NotUpError(trouble, self._log(trouble))
        # The same problem of many pods is reported once.
        if trouble.kind not in self._reported:
            self._reported.add(trouble.kind)
            self._listener.troubled(trouble)

    def _give_up(self, troubles: list[Trouble], new: list[Pod]) -> None:
        waiting = [pod for pod in new if not pod.is_ready]
        if not troubles and waiting:
            pod = min(waiting, key=_worst_first)
            troubles = [unready(pod, self._cluster.events("Pod", pod.name))]
        if not troubles:
            troubles = [Trouble("absent", ", ".join(map(str, self._refs)), pods.summary(new), None)]
        first = troubles[0]
        problem = f"{first.problem}, after {self._seconds:.0f} s"
        raise _NotUpError(replace(first, problem=problem), self._log(first))

    def _bear(self, error: UnreachableError | RefusedByCluster) -> None:
        """Tolerates an API server that is away or busy for a while, for example during its update."""
        passes = isinstance(error, UnreachableError) or error.answer.is_passing
        now = time.monotonic()
        if self._absent_since is None:
            self._absent_since = now
        if not passes or now - self._absent_since >= _ABSENCE_S:
            raise error
        if error.problem not in self._reported:
            self._reported.add(error.problem)
            self._listener.troubled(
                Trouble("absence", error.subject, error.problem, error.repair, _ABSENCE_S)
            )

    def _log(self, trouble: Trouble) -> tuple[str, ...]:
        """Returns the end of the log that tells more, or why it cannot be read."""
        if trouble.log is None:
            return ()
        pod, (container, previous) = trouble.subject.partition("/")[2], trouble.log
        try:
            return self._cluster.log(pod, container, _READ_LINES, previous=previous)
        except (UnreachableError, RefusedByCluster) as error:
            return (f"(the log of {container} cannot be read: {error.problem})",)


def _key(trouble: Trouble) -> tuple[str, str]:
    return trouble.subject, trouble.kind


def _worst_first(pod: Pod) -> tuple[int, str]:
    return -sum(each.restarts for each in pod.containers), pod.name
