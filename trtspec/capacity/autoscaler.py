"""Kubernetes' HorizontalPodAutoscaler on the requests that replicas have, at work and in line; no clock.

The numbers are Kubernetes' defaults (https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale,
"Algorithm details" and "Default behavior"): it looks every 15 s, leaves a ratio within a tenth of 1 alone,
at most doubles the replicas or adds four each 15 s, whichever is more, and takes away only what was too much
for five minutes. Metrics are as old as the last scrape of Prometheus, here every 15 s too.
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
    """The mean number of requests that each replica is to have."""
    least: int
    """The least number of replicas."""
    most: int
    """The largest number of replicas."""
    start_s: float
    """The time from the request for a replica until it serves."""
    scrape_s: float = 15.0
    sync_s: float = 15.0
    stabilization_s: float = 300.0


class Autoscaler:
    """Says how many replicas there should be."""

    def __init__(self, scaling: ReplicaScaling) -> None:
        self._scaling = scaling
        self._recommended: deque[tuple[float, int]] = deque()

    def wanted(self, present: int, ready: int, replicas: int, now: float) -> int:
        """Returns how many replicas there should be, of which `ready` have `present` requests as scraped.

        More are wanted only if there are too few with those that are not ready yet, without load, and fewer
        only if there are too many without them.
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
