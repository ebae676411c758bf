"""Computes the steps of a canary: the pods of each build, and the share of requests; pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from trtspec.deployment.rollout.steps import STEPS

SHARES = tuple(step.state.share for step in STEPS if step.state.mode == "speculate")
"""The shares of requests that a canary gets, one after the other. 0 is before it, and 1 is after it."""


@dataclass(frozen=True, slots=True)
class PodCounts:
    """Pods of the build that serves, and of the new one."""

    stable: int
    canary: int

    @property
    def share(self) -> float:
        """The canary's share of requests if every pod gets the same number."""
        total = self.stable + self.canary
        return self.canary / total if total else 0.0


def name_of(share: float) -> str:
    return {0.0: "off", 1.0: "all"}.get(share) or f"{share * 100:.3g} %"


def counts_of(share: float, replicas: int) -> PodCounts:
    """Returns the pods for a share of `replicas`; each build has at least one while both serve."""
    if share in (0.0, 1.0):
        return PodCounts(replicas, 0)
    canary = max(1, math.ceil(share * replicas - 0.5))
    return PodCounts(max(1, replicas - canary), canary)


def steps_for(replicas: int, *, has_weights: bool) -> tuple[float, ...]:
    """Returns the shares that this number of replicas allows, from 0 to 1.

    A gateway's weights allow any share. Without them several shares may take the same pods; the largest of
    these is nearest to the real share.
    """
    between = SHARES[1:-1]
    if not has_weights:
        between = tuple({counts_of(share, replicas): share for share in between}.values())
    return (0.0, *between, 1.0)


def moves(now: PodCounts, then: PodCounts, *, surge: bool) -> Iterator[PodCounts]:
    """Yields the counts on the way, one pod at a time, so that requests always have servers.

    With `surge` a new pod starts before an old one ends. Without it there are never more pods than before.
    """
    stable, canary = now.stable, now.canary
    while (stable, canary) != (then.stable, then.canary):
        up = _toward(canary, then.canary), _toward(stable, then.stable)
        grow = (0, max(up[0], 0)) if up[0] > 0 else (max(up[1], 0), 0)
        shrink = (0, min(up[0], 0)) if up[0] < 0 else (min(up[1], 0), 0)
        for change in (grow, shrink) if surge else (shrink, grow):
            if change != (0, 0):
                stable, canary = stable + change[0], canary + change[1]
                yield PodCounts(stable, canary)


def _toward(number: int, goal: int) -> int:
    return (goal > number) - (goal < number)
