"""Shows a canary and moves it: starts it, goes one step on or back, or removes it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from trtspec.base.errors import ClusterError, RefusedError, UnavailableError
from trtspec.cluster.kubernetes.canary import standing as standings
from trtspec.cluster.kubernetes.canary.evidence import Counted, check, grown
from trtspec.cluster.kubernetes.canary.metrics import MOST_PODS, PodMetrics
from trtspec.cluster.kubernetes.canary.pair import CanaryPair
from trtspec.cluster.kubernetes.canary.standing import CanaryState, PodCounts, counts_of, name_of, steps_for
from trtspec.cluster.kubernetes.pods import Pod
from trtspec.cluster.kubernetes.resources import CANARY, STABLE
from trtspec.deployment.rollout.bounds import BoundState, Check, overall
from trtspec.deployment.rollout.standing import now


@dataclass(frozen=True, slots=True)
class CanaryView:
    """The state of a canary, and of its bounds."""

    name: str
    standing: CanaryState | None
    """The canary; None if there is none."""
    counts: PodCounts
    """The pods of the build that serves, and of the new one."""
    steps: tuple[float, ...]
    """The shares of requests that the canary can have."""
    checks: list[Check]
    """The bounds, each with its state."""

    @property
    def share(self) -> float:
        return self.standing.share if self.standing else 0.0

    @property
    def verdict(self) -> BoundState:
        return overall(self.checks)

    def as_json(self) -> dict[str, Any]:
        standing = self.standing
        return {
            "name": self.name,
            "step": name_of(self.share),
            "reached": standing is None or standing.is_reached,
            "since": standing and standing.since,
            "new": standing and standing.new,
            "old": standing and standing.old,
            "pods": asdict(self.counts),
            "steps": [name_of(share) for share in self.steps],
            "verdict": self.verdict.value,
            "checks": [{**asdict(each), "verdict": each.verdict.value} for each in self.checks],
        }


class Canary:
    """The canary of one deployment. `told` is called before each move."""

    def __init__(self, pair: CanaryPair, metrics: PodMetrics, told: Callable[[str, str], None]) -> None:
        self._pair, self._metrics, self._told = pair, metrics, told
        self._cluster, self._name = pair.cluster, pair.values.name
        if pair.values.server:
            problem = "is vLLM, SGLang or trtllm-serve, whose metrics cannot judge a canary"
            repair = "a second recipe with another kubernetes.name serves the new build beside it"
            raise ClusterError(self._name, problem, repair)
        if pair.values.kserve:
            problem = "is served by KServe, which has canaries of its own"
            raise ClusterError(self._name, problem, "canaryTrafficPercent of its InferenceService")
        if pair.values.group:
            problem = "spans hosts: a canary beside a LeaderWorkerSet is not supported"
            raise ClusterError(self._name, problem, "trtspec deploy replaces one group after the other")

    def view(self) -> CanaryView:
        """Looks at the cluster and at the counters of its pods."""
        standing, counts = standings.read(self._cluster, self._name), self._pair.counts()
        checks = self._checks(standing, counts) if standing and 0 < standing.share < 1 else []
        replicas = standing.replicas if standing else counts.stable
        return CanaryView(self._name, standing, counts, self._steps(replicas), checks)

    def go_on(self, *, force: bool) -> tuple[float, float] | None:
        """Goes to the next share, and returns both shares; None if the new build serves alone already.

        An interrupted move is finished first. Raises `RefusedError` if a bound does not hold, unless with
        `force`, and `ClusterError` if pods do not start.
        """
        standing = standings.read(self._cluster, self._name)
        if standing is None or (standing.share == 1 and standing.is_reached and not self._is_same(standing)):
            return self._begin(standing)
        if standing.share == 1 and standing.is_reached:
            return None
        self._check_build(standing)
        here = standing.share
        if not standing.is_reached:
            return here, self._move(standing, here)
        then = next(each for each in self._steps(standing.replicas) if each > here)
        if not force:
            self._check(self._checks(standing, self._pair.counts()), then)
        return here, self._move(standing, then)

    def go_back(self) -> tuple[float, float] | None:
        """Goes back to the share before, and returns both shares; None if the old build serves alone
        already."""
        standing = standings.read(self._cluster, self._name)
        if standing is None:
            return None
        then = (
            0.0
            if standing.share == 1
            else max(each for each in self._steps(standing.replicas) if each < standing.share)
        )
        return standing.share, self._move(standing, then)

    def go_off(self) -> tuple[float, float] | None:
        """Removes the new build at once, and returns both shares; None if there is no canary."""
        standing = standings.read(self._cluster, self._name)
        if standing is None:
            return None
        return standing.share, self._end(standing)

    def _begin(self, before: CanaryState | None) -> tuple[float, float]:
        stable, is_same = self._pair.served()
        if is_same:
            problem = f"serves this build already, {stable.build[:12]}"
            raise RefusedError(
                self._name, problem, "trtspec build RECIPE --store URL makes another build to try"
            )
        if not stable.is_done:
            repair = "trtspec deploy status --kubernetes says why"
            raise RefusedError(self._name, f"is not all ready: {stable.ready} of {stable.wanted}", repair)
        revision, mark = self._pair.helm.revision(self._name), before.mark if before else None
        made = CanaryState(
            0.0, self._pair.values.digest, stable.build, stable.wanted, revision=revision, mark=mark
        )
        return 0.0, self._move(made, self._steps(stable.wanted)[1])

    def _move(self, standing: CanaryState, then: float) -> float:
        """Moves pods and requests to a share, after it has recorded that share."""
        if then == 0:
            return self._end(standing)
        self._told(name_of(standing.share), name_of(then))
        meant = self._write(replace(standing, share=then, is_reached=False, since=None, counted={}))
        if then == 1:
            return self._promote(meant)
        # A build gets requests only while it has pods; an interrupted step may have none yet.
        self._pair.lead(min(standing.share, then) if standing.is_reached else 0.0)
        self._pair.shift(self._counts(then, standing.replicas))
        self._pair.lead(then)
        self._write(replace(meant, is_reached=True, since=now(), counted=self._counted()))
        return then

    def _promote(self, standing: CanaryState) -> float:
        """Makes the new build the deployment's own, and removes the canary."""
        pair = self._pair
        pair.update()
        if not pair.is_scaled:
            pair.shift(PodCounts(standing.replicas, 0))
        pair.remove_canary()
        pair.settle()
        self._write(replace(standing, is_reached=True, since=now()))
        return 1.0

    def _end(self, standing: CanaryState) -> float:
        """Restores the deployment as it was before the canary, and removes the canary."""
        self._told(name_of(standing.share), name_of(0.0))
        pair = self._pair
        if standing.revision is not None and (pair.has_weights or standing.share == 1):
            pair.helm.rollback(self._name, standing.revision, force=True)
        pair.remove_canary()
        if not pair.is_scaled and pair.counts().stable < standing.replicas:
            pair.shift(PodCounts(standing.replicas, 0))
        pair.finish()
        self._cluster.delete(standings.ref_of(self._name))
        return 0.0

    def _counts(self, share: float, replicas: int) -> PodCounts:
        """Returns the pods for a share; a number that an autoscaler sets stays as it is."""
        if not self._pair.is_scaled:
            return counts_of(share, replicas)
        stable = self._pair.counts().stable
        return PodCounts(stable, max(1, round(share / (1 - share) * stable)))

    def _steps(self, replicas: int) -> tuple[float, ...]:
        return steps_for(replicas, has_weights=self._pair.has_weights)

    def _write(self, standing: CanaryState) -> CanaryState:
        return standings.write(self._cluster, self._name, standing)

    def _is_same(self, standing: CanaryState) -> bool:
        return standing.new == self._pair.values.digest

    def _check_build(self, standing: CanaryState) -> None:
        if not self._is_same(standing):
            digest = self._pair.values.digest
            problem = f"the canary serves build {standing.new[:12]}, and the recipe's build is {digest[:12]}"
            raise RefusedError(self._name, problem, "trtspec rollout canary off RECIPE removes that canary")

    def _check(self, checks: list[Check], then: float) -> None:
        for verdict in (BoundState.BROKEN, BoundState.OPEN):
            for found in checks:
                if found.verdict is verdict:
                    raise _refused(found, then)

    def _checks(self, standing: CanaryState, counts: PodCounts) -> list[Check]:
        new = self._pair.pods(CANARY)
        of_new, of_old = self._metrics.of(_ready(new)), self._metrics.of(_ready(self._pair.pods(STABLE)))
        before, silent = standing.counted, len(_ready(new)[:MOST_PODS]) - len(of_new)
        return check(grown(before, of_new), grown(before, of_old), new, counts.canary, silent)

    def _counted(self) -> dict[str, Counted]:
        """Returns what the pods have counted until now; empty if no metrics can be read, and the move goes
        on."""
        found: dict[str, Counted] = {}
        with suppress(ClusterError, UnavailableError):
            for track in (CANARY, STABLE):
                found |= self._metrics.of(_ready(self._pair.pods(track)))
        return found


def _ready(pods: list[Pod]) -> list[str]:
    """Returns the names of the ready pods: only these give metrics."""
    return sorted(pod.name for pod in pods if pod.is_ready)


def _refused(found: Check, then: float) -> RefusedError:
    if found.verdict is BoundState.BROKEN:
        problem = f"{found.name} is {found.found}, and must be {found.bound}"
        repair = "go back: trtspec rollout canary back RECIPE, or off"
        return RefusedError(f"no step to {name_of(then)}", problem, repair)
    tells = f"; about {found.needed} more requests will decide" if found.needed else ""
    problem = f"{found.name}: {found.found}{tells}"
    return RefusedError(f"no step to {name_of(then)} yet", problem, "wait for them, or --force it")
