"""Finds why a pod does not start: one problem, in words for people, with the repair; pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from trtspec.cluster.kubernetes.pods import Pod, PodContainer
from trtspec.cluster.kubernetes.refusals import one_line, words_of_denial

_PULL = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
_MAKE = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_NEVER = re.compile(
    r"not found|manifest unknown|denied|unauthorized|no basic auth|invalid reference|does not exist"
    r"|\b40[13]\b|no match for platform|NeverPull|InvalidImageName|couldn't parse",
    re.IGNORECASE,
)
_COMING = ("TriggeredScaleUp", "Nominated")
"""Event reasons by which Cluster Autoscaler and Karpenter announce a new node."""
_NOT_COMING = "NotTriggerScaleUp"
_OUT_OF_MEMORY = "OOMKilled"
_RESTARTS, _INIT_RESTARTS = 2, 1
_RETRIED_S, _NODE_S, _QUOTA_S = 120.0, 180.0, 60.0


@dataclass(frozen=True, slots=True)
class Event:
    """An event of an object, by a controller, the scheduler or a kubelet."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Trouble:
    """A problem of something in the cluster, and its repair."""

    kind: str
    """Identifies the problem: the same each time, even if numbers in the message change."""
    subject: str
    problem: str
    repair: str | None
    passes_within_s: float = 0.0
    """The seconds within which the problem may pass."""
    log: tuple[str, bool] | None = None
    """The container whose log tells more, and True for the log before the last restart."""


def trouble_of(pod: Pod, events: Sequence[Event], namespace: str) -> Trouble | None:
    """Returns the problem of a pod that is not ready; None if it only needs more time."""
    subject = f"pod/{pod.name}"
    if pod.phase == "Failed":
        problem = one_line(": ".join(filter(None, (pod.reason or "failed", pod.message))))
        return Trouble(
            "failed", subject, problem, f"kubectl describe pod {pod.name} -n {namespace}", _RETRIED_S
        )
    if pod.unscheduled:
        return _unscheduled(subject, pod, events)
    for container in pod.containers:
        found = _of_container(subject, container, events, namespace)
        if found:
            return found
    return None


def denied(subject: str, message: str, namespace: str) -> Trouble:
    """Returns the problem of a workload whose pods the API server rejects."""
    known = words_of_denial(message, namespace)
    problem, repair = known or (one_line(message), None)
    return Trouble("denied", subject, f"its pods are rejected: {problem}", repair, _QUOTA_S)


def unready(pod: Pod, events: Sequence[Event]) -> Trouble:
    """Returns why a running pod is not ready after the timeout."""
    probes = [each.message for each in events if each.reason == "Unhealthy"]
    said = one_line(probes[-1]) if probes else f"it is {pod.stage}"
    current = pod.current
    return Trouble(
        "unready",
        f"pod/{pod.name}",
        f"is not ready: {said}",
        "its log shows what it does; --timeout waits longer",
        log=(current.name, False) if current and current.is_running else None,
    )


def _unscheduled(subject: str, pod: Pod, events: Sequence[Event]) -> Trouble:
    problem = f"no node takes it: {one_line(pod.unscheduled)}"
    repair = "compare the recipe's hardware with the nodes' GPUs: kubectl get nodes -L nvidia.com/gpu.product"
    if "persistentvolumeclaim" in pod.unscheduled.lower():
        repair = "kubectl get pvc shows the volume claims; kubernetes.cache in the recipe names one"
    for event in events:
        if event.reason == _NOT_COMING:
            return Trouble("unscheduled", subject, f"{problem}; {one_line(event.message)}", repair)
    is_coming = any(event.reason in _COMING for event in events)
    return Trouble("unscheduled", subject, problem, repair, math.inf if is_coming else _NODE_S)


def _of_container(
    subject: str, container: PodContainer, events: Sequence[Event], namespace: str
) -> Trouble | None:
    if container.waiting in _PULL:
        return _image(subject, container)
    if container.waiting in _MAKE:
        problem = f"container {container.name} cannot be created: {one_line(container.message)}"
        return Trouble("unmade", subject, problem, _missing(container.message, namespace), 30.0)
    if container.has_failed:
        return _ended(subject, container, events, namespace)
    return None


def _image(subject: str, container: PodContainer) -> Trouble:
    words = one_line(container.message)
    problem = f"its image cannot be pulled: {words or container.waiting}"
    repair = (
        "check kubernetes.image in the recipe, and kubernetes.secrets.image_pull, the Secret for pulling it"
    )
    passes = not _NEVER.search(f"{container.waiting} {words}")
    # The first failure may give no reason.
    return Trouble("image", subject, problem, repair, _RETRIED_S if passes else 0.0)


def _ended(subject: str, container: PodContainer, events: Sequence[Event], namespace: str) -> Trouble:
    kind = "init container" if container.is_init else "container"
    name, times = container.name, f", {container.ends} times so far" if container.ends > 1 else ""
    # A container that has ended, or waits for its restart, has left a log.
    log = (container.name, container.is_past)
    many = container.restarts >= (_INIT_RESTARTS if container.is_init else _RESTARTS)
    passes_within_s = 0.0 if many and not container.is_running else math.inf
    if container.ended_by == _OUT_OF_MEMORY:
        problem = f"{kind} {name} took more memory than its limit{times}"
        repair = "kubernetes.resources.memory in the recipe raises the limit"
        return Trouble(f"memory of {name}", subject, problem, repair, passes_within_s, log)
    killed = [one_line(each.message) for each in events if each.reason == "Killing"]
    probes = [one_line(each.message) for each in events if each.reason == "Unhealthy"]
    if killed and probes and not container.is_init:
        problem = f"{killed[-1]}: {probes[-1]}"
        repair = f"kubectl logs {subject} -c {name} -n {namespace}"
        return Trouble(f"probe of {name}", subject, problem, repair, passes_within_s, log)
    why = one_line(container.last_words) if container.last_words else ""
    code = f"with {container.exit_code}" + (f": {why}" if why else "")
    problem = f"{kind} {name} ended {code}{times}"
    repair = f"kubectl logs {subject} -c {name} -n {namespace}"
    return Trouble(f"end of {name}", subject, problem, repair, passes_within_s, log)


def _missing(message: str, namespace: str) -> str | None:
    found = re.search(r'(secret|configmap) "([^"]+)" not found', message)
    if not found:
        return None
    kind = "secret generic" if found[1] == "secret" else "configmap"
    return f"kubectl create {kind} {found[2]} -n {namespace}, or name another in the recipe's kubernetes"
