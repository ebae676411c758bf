"""Derives the state of a build's job from the API server's objects of the job and its pods; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtspec.cluster.jobs.job import JobState, Phase
from trtspec.cluster.kubernetes.job_object import CONTAINER, QUEUE
from trtspec.cluster.kubernetes.pods import Pod
from trtspec.cluster.kubernetes.refusals import one_line
from trtspec.cluster.kubernetes.troubles import Event, denied, trouble_of

_AGAIN = "the same command continues where it stopped"
_MEMORY = "kubernetes.build.memory in the recipe raises it"
_TIME = "raise kubernetes.build.limit_hours in the recipe; the same command continues"
_DENIED = "FailedCreate"


@dataclass(frozen=True, slots=True)
class JobObject:
    """A job as the API server describes it."""

    name: str
    uid: str
    queue: str
    is_suspended: bool
    is_ending: bool
    failed: int
    """The number of pods that have failed."""
    ended: str
    """The condition at its end: `Complete` or `Failed`; empty until then."""
    reason: str
    """The reason of that condition."""
    message: str
    """The message of that condition."""

    @property
    def is_over(self) -> bool:
        return bool(self.ended) or self.is_ending


def parse(manifest: Mapping[str, Any]) -> JobObject:
    """Returns the job from the API server's object."""
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    conditions = {each["type"]: each for each in status.get("conditions") or () if each["status"] == "True"}
    ended = next((each for each in ("Complete", "Failed") if each in conditions), "")
    found = conditions.get(ended, {})
    return JobObject(
        name=metadata["name"],
        uid=metadata.get("uid") or "",
        queue=(metadata.get("labels") or {}).get(QUEUE, ""),
        is_suspended=bool(manifest["spec"].get("suspend")),
        is_ending=bool(metadata.get("deletionTimestamp")),
        failed=status.get("failed") or 0,
        ended=ended,
        reason=found.get("reason") or "",
        message=found.get("message") or "",
    )


def state_of(job: JobObject, pods: Sequence[Pod], events: Sequence[Event], namespace: str) -> JobState:
    """Returns the state of a job from its `pods` and their `events`, or the job's if it has no pods."""
    newest = max(pods, key=lambda pod: (pod.created, pod.name), default=None)
    if job.ended == "Complete":
        return JobState(Phase.DONE, node=_node(newest), restarts=job.failed)
    if job.ended == "Failed":
        reason, repair = _why(job, newest)
        # The last failed pod ended the job; the others were restarts.
        return JobState(Phase.FAILED, reason, repair, _node(newest), max(job.failed - 1, 0))
    if job.is_ending:
        return JobState(Phase.CANCELLED, "was deleted in the cluster")
    if job.is_suspended:
        return JobState(Phase.WAITS, f"waits in the queue {job.queue}" if job.queue else "is suspended")
    if newest is None or newest.has_ended:
        refused = [event.message for event in events if event.reason == _DENIED and newest is None]
        reason = denied(job.name, refused[-1], namespace).problem if refused else "waits for a pod"
        return JobState(Phase.WAITS, reason, restarts=job.failed)
    if newest.phase == "Running":
        return JobState(Phase.RUNS, node=_node(newest), restarts=job.failed)
    return _pending(job, newest, events, namespace)


def _pending(job: JobObject, pod: Pod, events: Sequence[Event], namespace: str) -> JobState:
    trouble = trouble_of(pod, events, namespace)
    if trouble is None:
        return JobState(Phase.WAITS, f"its pod is {pod.stage}", node=_node(pod), restarts=job.failed)
    # A lasting problem would keep the pod waiting until the job's limit.
    phase = Phase.WAITS if trouble.patience_s else Phase.FAILED
    return JobState(phase, trouble.problem, trouble.repair, _node(pod), job.failed)


def _why(job: JobObject, pod: Pod | None) -> tuple[str, str | None]:
    """Returns why a job has failed, and the repair."""
    if job.reason == "DeadlineExceeded":
        return "took longer than its limit", _TIME
    if pod is None:
        return one_line(job.message) or "has failed", _AGAIN
    if pod.reason == "Evicted":
        return f"was evicted from its node: {one_line(pod.message)}", _AGAIN
    container = next((each for each in pod.containers if each.name == CONTAINER), None)
    if container is None or container.exit_code is None:
        said = pod.message or pod.reason or job.message
        return f"its pod has failed: {one_line(said)}" if said else "its pod has failed", _AGAIN
    if container.ended_by == "OOMKilled":
        return "took more memory than its limit", _MEMORY
    if container.exit_code > 128:
        return f"was killed by signal {container.exit_code - 128}", _AGAIN
    return f"ended with status {container.exit_code}", None


def _node(pod: Pod | None) -> str | None:
    return pod.node or None if pod else None
