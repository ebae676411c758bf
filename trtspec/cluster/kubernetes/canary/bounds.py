"""Checks the bounds of a canary: those of a roll-out, with the old build in place of plain decoding; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtspec.cluster.kubernetes.canary.evidence import Counted, arm, drafts
from trtspec.cluster.kubernetes.pods import Pod, summary
from trtspec.deployment.rollout.bounds import (
    LEAST_ACCEPTANCE,
    MOST_FIRST_OUTPUT,
    MOST_TIME_PER_TOKEN,
    BoundState,
    Check,
    acceptance,
    errors,
    ratio,
    requests,
)

_NAMES = ("new", "old")


@dataclass(frozen=True, slots=True)
class CanaryEvidence:
    """The counters of both builds since the step began, and the pods of the new one."""

    canary: Counted
    stable: Counted
    pods: Sequence[Pod]
    wanted: int
    silent: int = 0
    """How many of these pods are ready but give no metrics."""


def check(evidence: CanaryEvidence) -> list[Check]:
    """Returns the bounds of a step at which both builds serve."""
    new, old = arm(evidence.canary), arm(evidence.stable)
    drafted, usual = drafts(evidence.canary), drafts(evidence.stable)
    checks = [_pods(evidence), requests(new, old, _NAMES)]
    if drafted.drafts or usual.drafts:
        # The new build is not to blame for texts on which the old one does worse.
        least = min(LEAST_ACCEPTANCE, usual.per_token) if usual.drafts else LEAST_ACCEPTANCE
        checks.append(acceptance(drafted, new, least))
    checks.append(errors(new, old, "old"))
    checks.append(ratio("time per token", new.per_token, old.per_token, MOST_TIME_PER_TOKEN, "old"))
    checks.append(ratio("first output", new.first_token, old.first_token, MOST_FIRST_OUTPUT, "old"))
    return checks


def _pods(evidence: CanaryEvidence) -> Check:
    """Returns the check that no pod of the new build has restarted."""
    restarts = sum(each.restarts for pod in evidence.pods for each in pod.containers if not each.is_init)
    ready = sum(pod.is_ready for pod in evidence.pods)
    name, bound = "pods", "all ready, none restarted"
    if restarts:
        return Check(name, bound, f"{restarts} restarts", BoundState.BROKEN)
    if evidence.silent:
        return Check(name, bound, f"{evidence.silent} of {ready} ready ones give no metrics", BoundState.OPEN)
    if ready < evidence.wanted:
        return Check(name, bound, summary(list(evidence.pods)), BoundState.OPEN)
    return Check(name, bound, f"{ready} ready", BoundState.HOLDS)
