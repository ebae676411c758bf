"""What the controller of jobs does: one pod at a time, retries, the failure policy, deadlines and clean-up.

https://kubernetes.io/docs/concepts/workloads/controllers/job/ says how.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.fakes.kubernetes.objects import Json, Stored

OWNER = "batch.kubernetes.io/controller-uid"
RETRY_S = 10.0


@dataclass
class JobLife:
    """What the controller keeps of one job."""

    begun: float | None = None
    ended: float | None = None
    failed: int = 0
    ignored: int = 0
    judged: set[str] = field(default_factory=set)
    next_pod: float = 0.0
    conditions: list[Json] = field(default_factory=list)
    denied: str | None = None


def labels_of(uid: str, name: str) -> Json:
    return {OWNER: uid, "controller-uid": uid, "job-name": name, "batch.kubernetes.io/job-name": name}


class JobController:
    """Brings jobs to a time."""

    def __init__(self) -> None:
        self.lives: dict[str, JobLife] = {}

    def advance(
        self,
        name: str,
        of: Stored,
        pods: list[tuple[str, Json]],
        now: float,
        make: Callable[[], str | None],
    ) -> bool:
        """Judges the pods, names with statuses, of one job; says whether they are to end.

        `make` makes a pod, or says why it is not let in.
        """
        uid, spec = str(of.metadata["uid"]), of.manifest()["spec"]
        life = self.lives.setdefault(uid, JobLife())
        if spec.get("suspend"):
            life.begun = None
            of.status = {"conditions": [{"type": "Suspended", "status": "True", "reason": "JobSuspended"}]}
            return True
        life.begun = now if life.begun is None else life.begun
        for pod, status in pods:
            if pod not in life.judged and status["phase"] in ("Succeeded", "Failed"):
                life.judged.add(pod)
                self._judge(life, spec, status, now)
        if not life.conditions and now - life.begun >= spec.get("activeDeadlineSeconds", float("inf")):
            self._end(
                life, now, "Failed", "DeadlineExceeded", "Job was active longer than specified deadline"
            )
        active = [pod for pod, _ in pods if pod not in life.judged]
        if not life.conditions and not active and now >= life.next_pod:
            life.denied = make()
        of.status = {
            "failed": life.failed,
            "active": len(active),
            "startTime": "2026-01-01T00:00:00Z",
            "conditions": life.conditions,
        }
        return bool(life.conditions) and life.conditions[0]["reason"] == "DeadlineExceeded"

    def events(self, uid: str) -> list[Json]:
        """What was said of a job itself."""
        life = self.lives.get(uid)
        denied = life.denied if life else None
        return [{"reason": "FailedCreate", "message": denied, "type": "Warning"}] if denied else []

    def is_gone(self, of: Stored, now: float) -> bool:
        """Whether the job's time to live is over."""
        life = self.lives.get(str(of.metadata["uid"]))
        ttl = of.manifest()["spec"].get("ttlSecondsAfterFinished")
        return bool(life and life.ended is not None and ttl is not None and now - life.ended >= ttl)

    def _judge(self, life: JobLife, spec: Json, status: Json, now: float) -> None:
        if status["phase"] == "Succeeded":
            self._end(life, now, "Complete", "CompletionsReached", "")
            return
        action, words = _action(spec, status)
        if action == "FailJob":
            life.failed += 1
            self._end(life, now, "Failed", "PodFailurePolicy", words)
        elif action == "Ignore":
            life.ignored += 1
        else:
            life.failed += 1
            life.next_pod = now + RETRY_S * 2 ** (life.failed - 1)
            if life.failed > spec.get("backoffLimit", 6):
                words = "Job has reached the specified backoff limit"
                self._end(life, now, "Failed", "BackoffLimitExceeded", words)

    def _end(self, life: JobLife, now: float, kind: str, reason: str, message: str) -> None:
        life.ended = now
        life.conditions = [{"type": kind, "status": "True", "reason": reason, "message": message}]


def _action(spec: Json, status: Json) -> tuple[str, str]:
    """What the first rule of the failure policy that fits says; Count where none does."""
    for number, rule in enumerate(spec.get("podFailurePolicy", {}).get("rules", [])):
        for wanted in rule.get("onPodConditions", []):
            for found in status.get("conditions", []):
                if (found["type"], found["status"]) == (wanted["type"], wanted.get("status", "True")):
                    return rule[
                        "action"
                    ], f"Pod has condition matching {rule['action']} rule at index {number}"
        codes = rule.get("onExitCodes")
        for each in status.get("containerStatuses", []) if codes else []:
            code = each["state"].get("terminated", {}).get("exitCode")
            is_in = code in codes["values"]
            is_meant = each["name"] == codes.get("containerName", each["name"])
            if code and is_meant and is_in == (codes["operator"] == "In"):
                words = f"Container {each['name']} failed with exit code {code}"
                return rule["action"], f"{words} matching {rule['action']} rule at index {number}"
    return "Count", ""
