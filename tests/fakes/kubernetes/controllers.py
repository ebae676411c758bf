"""What the controllers of a cluster make of objects: pods of deployments, a rolling update at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from tests.fakes.kubernetes.job_controller import JobController, labels_of
from tests.fakes.kubernetes.objects import Json, Stored
from tests.fakes.kubernetes.scripts import Moment, Script

ENDING_S = 2.0
"""How long a pod takes to end."""


@dataclass
class Pod:
    """A pod that a controller has made, of a script; `ends` is when it is gone, after it was deleted."""

    name: str
    owner: str
    template_hash: str
    labels: Json
    spec: Json
    born: float
    script: Script
    number: int
    ends: float | None = None

    def moment(self, now: float) -> Moment:
        return self.script(self.spec, now - self.born)

    def is_ready(self, now: float) -> bool:
        conditions = self.moment(now).status.get("conditions", [])
        return self.ends is None and any(
            each["type"] == "Ready" and each["status"] == "True" for each in conditions
        )

    def manifest(self, now: float) -> Json:
        deleted = {} if self.ends is None else {"deletionTimestamp": _time(self.ends)}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": self.name,
                "labels": self.labels,
                "creationTimestamp": _time(self.born),
                "ownerReferences": [{"kind": "ReplicaSet", "name": self.owner}],
                **deleted,
            },
            "spec": self.spec,
            "status": self.moment(now).status,
        }


@dataclass
class Controllers:
    """Makes and ends pods; `script` says what becomes of a new one, `deny` who is not let in."""

    script: Callable[[Json], Script]
    deny: Callable[[Json, int], str | None]
    pods: list[Pod] = field(default_factory=list)
    made: int = 0
    jobs: JobController = field(default_factory=JobController)

    def advance(self, stored: dict[tuple[str, str], Stored], now: float) -> None:
        """Brings the pods and the status of workloads, by plural and name, to a time."""
        self.pods = [pod for pod in self.pods if pod.ends is None or pod.ends > now]
        for (plural, name), of in stored.items():
            if plural == "deployments":
                self._deployment(name, of, now)
            elif plural == "leaderworkersets":
                self._leader_worker_set(name, of, now)
            elif plural == "jobs":
                self._job(name, of, now)
        owners = {f"{plural}/{name}" for plural, name in stored}
        for pod in self.pods:
            if pod.owner not in owners:
                self._end(pod, now)

    def _deployment(self, name: str, of: Stored, now: float) -> None:
        spec, owner = of.manifest()["spec"], f"deployments/{name}"
        wanted, hashed = spec.get("replicas", 1), _hash(spec["template"])
        surge, missing = _update(spec, wanted)
        own = self._active(owner, now)
        new = [pod for pod in own if pod.template_hash == hashed]
        old = [pod for pod in own if pod.template_hash != hashed]
        denied = None
        while len(new) < wanted and len(new) + len(old) < wanted + surge and not denied:
            denied = self.deny(spec["template"], len(self.pods))
            if not denied:
                new.append(self._make(owner, name, hashed, spec["template"], now))
        for pod in new[wanted:]:
            self._end(pod, now)
        new = new[:wanted]
        ready = [pod for pod in (*new, *old) if pod.is_ready(now)]
        # An old pod that is not ready costs nobody anything.
        for pod in sorted(old, key=lambda pod: pod.is_ready(now)):
            if not pod.is_ready(now) or len(ready) - 1 >= wanted - missing:
                self._end(pod, now)
                ready = [each for each in ready if each is not pod]
        failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": denied}
        own = self._active(owner, now)
        num_ready = sum(pod.is_ready(now) for pod in own)
        of.status = {
            "observedGeneration": of.generation,
            "replicas": len(own),
            "updatedReplicas": sum(pod.template_hash == hashed for pod in own),
            "readyReplicas": num_ready,
            "availableReplicas": num_ready,
            "conditions": [failure] if denied else [],
        }

    def _active(self, owner: str, now: float) -> list[Pod]:
        """The pods that a ReplicaSet counts: it replaces those that have ended, and leaves them there."""
        own = [pod for pod in self.pods if pod.owner == owner and pod.ends is None]
        return [pod for pod in own if pod.moment(now).status.get("phase") not in ("Failed", "Succeeded")]

    def _leader_worker_set(self, name: str, of: Stored, now: float) -> None:
        """Groups of pods, a leader and its workers each; an update replaces all at once."""
        spec, owner = of.manifest()["spec"], f"leaderworkersets/{name}"
        wanted, size = spec.get("replicas", 1), spec["leaderWorkerTemplate"].get("size", 1)
        template, hashed = spec["leaderWorkerTemplate"]["workerTemplate"], _hash(spec["leaderWorkerTemplate"])
        own = [pod for pod in self.pods if pod.owner == owner and pod.ends is None]
        for pod in own:
            if pod.template_hash != hashed:
                self._end(pod, now)
        new = [pod for pod in own if pod.ends is None]
        while len(new) < wanted * size:
            new.append(self._make(owner, name, hashed, template, now))
        groups = [new[first : first + size] for first in range(0, len(new), size)]
        num_ready = sum(all(pod.is_ready(now) for pod in group) for group in groups)
        of.status = {
            "observedGeneration": of.generation,
            "replicas": len(groups),
            "updatedReplicas": len(groups),
            "readyReplicas": num_ready,
            "conditions": [],
        }

    def _job(self, name: str, of: Stored, now: float) -> None:
        spec, uid, owner = of.manifest()["spec"], str(of.metadata["uid"]), f"jobs/{name}"
        own = [pod for pod in self.pods if pod.labels.get("controller-uid") == uid and pod.ends is None]

        def make() -> str | None:
            if denied := self.deny(spec["template"], len(self.pods)):
                return denied
            self._make(owner, name, "", spec["template"], now, labels_of(uid, name))
            return None

        statuses = [(pod.name, pod.moment(now).status) for pod in own]
        if self.jobs.advance(name, of, statuses, now, make):
            for pod in own:
                self._end(pod, now)

    def _make(
        self, owner: str, name: str, hashed: str, template: Json, now: float, more: Json | None = None
    ) -> Pod:
        self.made += 1
        labels = {**template["metadata"]["labels"], **(more or {"pod-template-hash": hashed})}
        pod = Pod(
            name=f"{name}-{hashed}-{self.made:05d}",
            owner=owner,
            template_hash=hashed,
            labels=labels,
            spec=template["spec"],
            born=now,
            script=self.script(template),
            number=self.made,
        )
        self.pods.append(pod)
        return pod

    def _end(self, pod: Pod, now: float) -> None:
        if pod.ends is None:
            pod.ends = now + ENDING_S


def _update(spec: Json, wanted: int) -> tuple[int, int]:
    """How many pods may be too many and too few during an update."""
    strategy = spec.get("strategy", {}).get("rollingUpdate", {})

    def number(value: Any, rounded: Callable[[float], int]) -> int:
        return rounded(wanted * int(value.rstrip("%")) / 100) if isinstance(value, str) else int(value)

    surge = number(strategy.get("maxSurge", "25%"), math.ceil)
    return surge, number(strategy.get("maxUnavailable", "25%"), math.floor)


def _hash(template: Json) -> str:
    return sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]


def stamp(seconds: float) -> str:
    """A time of the emulator as a log has it."""
    return f"{_time(seconds)[:-1]}.{round(seconds % 1 * 10**9):09d}Z"


def _time(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"2026-01-01T{minutes // 60:02d}:{minutes % 60:02d}:{rest:02d}Z"
