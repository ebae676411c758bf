"""Reads the API server's pods into plain types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PodContainer:
    """A container of a pod.

    If it runs or waits again, its last end is the end before the last restart.
    """

    name: str
    is_init: bool
    is_running: bool
    is_ready: bool
    restarts: int
    waiting: str
    """The reason why it waits, if it does."""
    message: str
    """The message that goes with `waiting`."""
    exit_code: int | None
    """The exit code of its last end; None where there was none."""
    ended_by: str
    """The reason of its last end; empty where there was none."""
    last_words: str
    """The message of its last end; empty where there was none."""

    @property
    def has_failed(self) -> bool:
        return self.exit_code not in (None, 0)

    @property
    def ends(self) -> int:
        """The number of times that it has ended."""
        return self.restarts + (self.exit_code is not None and not self.is_running)

    @property
    def is_past(self) -> bool:
        """True if it was restarted after its last end, or will be."""
        return self.is_running or bool(self.waiting)


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod as the API server describes it."""

    name: str
    phase: str
    created: str
    """A time in ISO 8601."""
    template: str
    """The hash of its template: the same for all pods of one template."""
    node: str
    is_ready: bool
    is_ending: bool
    unscheduled: str
    """The scheduler's message while the pod has no node."""
    reason: str
    """The reason why the whole pod has failed."""
    message: str
    containers: tuple[PodContainer, ...]
    labels: Mapping[str, str]

    @property
    def has_ended(self) -> bool:
        return self.phase in ("Failed", "Succeeded")

    @property
    def current(self) -> PodContainer | None:
        """The pod's current container: the first that is not done."""
        for each in self.containers:
            if each.is_init and not (each.exit_code == 0 and not each.is_past):
                return each
        mains = [each for each in self.containers if not each.is_init]
        return next((each for each in mains if not each.is_ready), mains[0] if mains else None)

    @property
    def stage(self) -> str:
        """The stage of the pod, in words that follow a number of pods."""
        if self.is_ready:
            return "ready"
        if self.unscheduled:
            return "without a node"
        current = self.current
        if current is None or (current.waiting and current.waiting in _PREPARED):
            return "being created"
        if current.waiting or not current.is_running:
            return "in trouble" if current.has_failed or current.waiting else "starting"
        return f"in init container {current.name}" if current.is_init else "loading"


_PREPARED = ("ContainerCreating", "PodInitializing")
_TEMPLATES = ("pod-template-hash", "leaderworkerset.sigs.k8s.io/template-revision-hash")


def parse(manifest: Mapping[str, Any]) -> Pod:
    """Returns the pod from the API server's object."""
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled") or {}
    labels = metadata.get("labels") or {}
    return Pod(
        name=metadata["name"],
        phase=status.get("phase") or "Pending",
        created=metadata.get("creationTimestamp") or "",
        template=next((labels[key] for key in _TEMPLATES if key in labels), ""),
        node=(manifest.get("spec") or {}).get("nodeName") or "",
        is_ready=(conditions.get("Ready") or {}).get("status") == "True",
        is_ending=bool(metadata.get("deletionTimestamp")),
        unscheduled=scheduled.get("message") or "" if scheduled.get("reason") == "Unschedulable" else "",
        reason=status.get("reason") or "",
        message=status.get("message") or "",
        containers=(
            *(_container(each, is_init=True) for each in status.get("initContainerStatuses") or ()),
            *(_container(each, is_init=False) for each in status.get("containerStatuses") or ()),
        ),
        labels=labels,
    )


def newest(pods: list[Pod]) -> list[Pod]:
    """Returns the pods of the youngest pod's template, without those that are ending.

    An update always makes pods of the new template, whatever the state of the old ones. Pods that have ended
    count only where there are no others: a ReplicaSet replaces them, and does not delete them.
    """
    alive = [pod for pod in pods if not pod.is_ending]
    alive = [pod for pod in alive if not pod.has_ended] or alive
    if not alive:
        return []
    youngest = max(alive, key=lambda pod: (pod.created, pod.name))
    return [pod for pod in alive if pod.template == youngest.template]


def summary(pods: list[Pod]) -> str:
    """Returns the number of pods in each stage, in words."""
    stages: dict[str, int] = {}
    for pod in pods:
        stages[pod.stage] = stages.get(pod.stage, 0) + 1
    return ", ".join(f"{number} {stage}" for stage, number in sorted(stages.items())) or "no pods yet"


def _container(status: Mapping[str, Any], *, is_init: bool) -> PodContainer:
    state, last = status.get("state") or {}, status.get("lastState") or {}
    waiting = state.get("waiting") or {}
    ended = state.get("terminated") or last.get("terminated") or {}
    return PodContainer(
        name=status["name"],
        is_init=is_init,
        is_running="running" in state,
        is_ready=bool(status.get("ready")),
        restarts=int(status.get("restartCount") or 0),
        waiting=waiting.get("reason") or "",
        message=waiting.get("message") or "",
        exit_code=ended.get("exitCode"),
        ended_by=ended.get("reason") or "",
        last_words=ended.get("message") or "",
    )
