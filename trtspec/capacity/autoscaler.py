"""Models Kubernetes' HorizontalPodAutoscaler by the replicas' running and waiting requests; no clock.

The numbers are Kubernetes' defaults
(https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale, "Algorithm details" and "Default
behavior"). It checks every 15 s, and ignores a ratio within a tenth of 1. Each 15 s it at most doubles the
replicas or adds four, whichever is more. It removes only replicas that were too many for five minutes.
Metrics are as old as Prometheus' last scrape, which is every 15 s too.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

TOLERANCE = 0.1
PODS = 4


@dataclass(frozen=True, slots=True)
class ReplicaScaling:
    """The options of an autoscaler; times are in seconds."""

    target: float
    """The target for the mean number of requests of a replica."""
    least: int
    """The smallest number of replicas."""
    most: int
    """The largest number of replicas."""
    start_s: float
    """The time from the request for a replica until it serves."""
    scrape_s: float = 15.0
    sync_s: float = 15.0
    stabilization_s: float = 300.0


class Autoscaler:
    """Computes the desired number of replicas."""

    def __init__(self, scaling: ReplicaScaling) -> None:
        self._scaling = scaling
        self._recommended: deque[tuple[float, int]] = deque()

    def wanted(self, present: int, ready: int, replicas: int, now: float) -> int:
        """Returns the desired number of replicas.

        The `ready` ones have `present` requests by the last scrape. It rises only if there are too few
        replicas even when starting ones count as idle. It falls only if the ready ones alone are too many.
        """
        scaling = self._scaling
        ratio = present / (scaling.target * replicas)
        if ratio < 1:
            ratio = min(present / (scaling.target * ready), 1.0)
        wanted = replicas if abs(ratio - 1) <= TOLERANCE else math.ceil(ratio * replicas)
        wanted = min(max(wanted, scaling.least), scaling.most)
        self._recommended.append((now, wanted))
        while self._recommended[0][0] < now - scaling.stabilization_s:
            self._recommended.popleft()
        if wanted > replicas:
            return min(wanted, max(2 * replicas, replicas + PODS))
        return min(replicas, max(number for _, number in self._recommended))
