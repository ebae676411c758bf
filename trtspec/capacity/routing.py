"""Which replica a request goes to."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

from trtspec.capacity.worker import Worker

Routing = Literal["random", "round_robin", "least_requests"]
"""`random` is what a Service of Kubernetes does with connections (kube-proxy with iptables); `least_requests`
what gateways do that count."""


class Router:
    """Chooses among the replicas that are ready; there is at least one."""

    def __init__(self, routing: Routing, seed: int) -> None:
        self._routing, self._next = routing, 0
        self._dice = random.Random(f"routing {seed}")  # noqa: S311

    def choose(self, ready: Sequence[Worker]) -> Worker:
        if self._routing == "random":
            return ready[self._dice.randrange(len(ready))]
        self._next += 1
        turn = self._next % len(ready)
        if self._routing == "round_robin":
            return ready[turn]
        # Of those with as few, the next in turn.
        return min((*ready[turn:], *ready[:turn]), key=lambda worker: worker.present)
