"""What becomes of a pod: scripts by its age, with the words that kubelet and scheduler really say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
BACK_OFF_S = 10.0


@dataclass(frozen=True)
class Moment:
    """A pod at one age: its status without what follows from it, its events, and its containers' logs.

    `logs` are by container, and with `previous:` before the name those of the one before the last restart.
    """

    status: Json
    events: list[Json] = field(default_factory=list)
    logs: dict[str, str] = field(default_factory=dict)


Script = Callable[[Json, float], Moment]
"""The pod's spec and its age in seconds; the moment."""


def ready(after: float = 6.0) -> Script:
    """Scheduled at once; its init containers end half way, and its containers are ready in the end."""

    def script(spec: Json, age: float) -> Moment:
        if age < after / 2 and spec.get("initContainers"):
            return Moment(_status(spec, init=_running(), main=_waiting("PodInitializing")))
        return Moment(_status(spec, init=_ended(0), main=_running(ready=age >= after)))

    return script


def unschedulable(words: str, *events: tuple[str, str]) -> Script:
    """No node fits; `words` are the scheduler's, `events` other ones by their reasons."""

    def script(spec: Json, age: float) -> Moment:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
        told = [_event("FailedScheduling", words), *(_event(*each) for each in events)]
        return Moment({"phase": "Pending", "conditions": [condition]}, told)

    return script


def no_image(words: str, first: str = "ErrImagePull") -> Script:
    """The image of the first container cannot be pulled: as `first`, then with pauses."""

    def script(spec: Json, age: float) -> Moment:
        image = (spec.get("initContainers") or spec["containers"])[0]["image"]
        waiting = _waiting(first, words)
        if age > BACK_OFF_S:
            waiting = _waiting("ImagePullBackOff", f'Back-off pulling image "{image}": ErrImagePull: {words}')
        if spec.get("initContainers"):
            return Moment(_status(spec, init=waiting, main=_waiting("PodInitializing")))
        return Moment(_status(spec, main=waiting))

    return script


def not_made(reason: str, words: str) -> Script:
    """The main container cannot be made, for want of a secret and the like."""
    return lambda spec, age: Moment(_status(spec, init=_ended(0), main=_waiting(reason, words)))


def crashing(log: str, code: int = 1, reason: str = "Error", runs_s: float = 2.0) -> Script:
    """The main container ends after so long, and again after each restart."""

    def script(spec: Json, age: float) -> Moment:
        state, name = _restarting(age, code, reason, runs_s), spec["containers"][0]["name"]
        return Moment(_status(spec, init=_ended(0), main=state), logs=_logs(name, log))

    return script


def init_crashing(log: str, code: int = 1, runs_s: float = 2.0) -> Script:
    """The same for the first init container."""

    def script(spec: Json, age: float) -> Moment:
        state, name = _restarting(age, code, "Error", runs_s), spec["initContainers"][0]["name"]
        status = _status(spec, init=state, main=_waiting("PodInitializing"))
        return Moment(status, logs=_logs(name, log))

    return script


def probe_failing(words: str, restarts_after: float | None = None, log: str = "") -> Script:
    """Runs, and its probe fails with these words; kubelet restarts it after so long if that is given."""

    def script(spec: Json, age: float) -> Moment:
        name = spec["containers"][0]["name"]
        events = [_event("Unhealthy", words)]
        restarts = int(age / restarts_after) if restarts_after else 0
        if restarts:
            kind = words.partition(" ")[0].lower()
            events.append(_event("Killing", f"Container {name} failed {kind} probe, will be restarted"))
        ended = {"lastState": _ended(137, "Error")["state"]} if restarts else {}
        state = {**_running(ready=False), "restartCount": restarts, **ended}
        return Moment(_status(spec, init=_ended(0), main=state), events, _logs(name, log))

    return script


def evicted(words: str) -> Script:
    return lambda spec, age: Moment({"phase": "Failed", "reason": "Evicted", "message": words})


def finishing(log: str = "", after: float = 5.0) -> Script:
    """The container of a job runs for so long and succeeds; it writes two lines of its log a second."""
    return _ending("Succeeded", 0, "Completed", log, after)


def failing(code: int, log: str = "", reason: str = "Error", after: float = 2.0) -> Script:
    """The same, ending with a status."""
    return _ending("Failed", code, reason, log, after)


def disrupted(after: float = 2.0, node: str = "gpu-1") -> Script:
    """A pod that gives its node to others after a while."""

    def script(spec: Json, age: float) -> Moment:
        moment = _ending("Failed", 143, "Error", "", after, node)(spec, age)
        if moment.status["phase"] == "Failed":
            told = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
            moment.status["conditions"].append(told)
        return moment

    return script


def _ending(phase: str, code: int, reason: str, log: str, after: float, node: str = "gpu-1") -> Script:
    def script(spec: Json, age: float) -> Moment:
        spec["nodeName"] = node
        name, is_over = spec["containers"][0]["name"], age >= after
        status = _status(spec, main=_ended(code, reason) if is_over else _running())
        status["phase"] = phase if is_over else "Running"
        lines = [f"{line}\n" for line in log.removesuffix("\n").split("\n")]
        said = "".join(lines if is_over else lines[: int(age * 2) + 1])
        return Moment(status, logs={name: said})

    return script


def _status(spec: Json, *, main: Json, init: Json | None = None) -> Json:
    """The status of a pod whose containers are all in the same state."""
    inits = [_container(each, init or _ended(0)) for each in spec.get("initContainers") or []]
    containers = [_container(each, main) for each in spec["containers"]]
    is_ready = all(each["ready"] for each in containers)
    return {
        "phase": "Running" if all("running" in each["state"] for each in containers) else "Pending",
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": str(is_ready)},
        ],
        **({"initContainerStatuses": inits} if inits else {}),
        "containerStatuses": containers,
    }


def _container(container: Json, state: Json) -> Json:
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        **state,
    }


def _restarting(age: float, code: int, reason: str, runs_s: float) -> Json:
    """A container that runs for so long, ends, and waits for its restart."""
    cycle = runs_s + BACK_OFF_S
    restarts, within = divmod(age, cycle)
    last = {"lastState": _ended(code, reason)["state"]} if restarts else {}
    counted = {"restartCount": int(restarts), **last}
    if within < runs_s:
        return {**_running(ready=False), **counted}
    if not restarts:
        return {**_ended(code, reason), **counted}
    words = f"back-off {BACK_OFF_S:.0f}s restarting failed container"
    return {**_waiting("CrashLoopBackOff", words), **counted}


def _running(*, ready: bool = False) -> Json:
    return {"state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, "ready": ready, "started": ready}


def _waiting(reason: str, message: str = "") -> Json:
    return {"state": {"waiting": {"reason": reason, **({"message": message} if message else {})}}}


def _ended(code: int, reason: str | None = None) -> Json:
    ended = {"exitCode": code, "reason": reason or ("Completed" if not code else "Error")}
    return {"state": {"terminated": ended}, "ready": not code}


def _event(reason: str, message: str) -> Json:
    kind = "Normal" if reason in ("TriggeredScaleUp", "Nominated", "Killing") else "Warning"
    return {"reason": reason, "message": message, "type": kind}


def _logs(name: str, log: str) -> dict[str, str]:
    return {name: log, f"previous:{name}": log}
