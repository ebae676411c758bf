"""Simulates a fleet event by event: arrivals, iterations, scrapes, the autoscaler, and cold starts.

The same seed gives the same numbers. Nothing is measured here: the time of an iteration comes from the
replica's `Tempo`, and arrivals come from `trtspec.capacity.demand`.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

from trtspec.base.progress import Advance
from trtspec.capacity.autoscaler import Autoscaler, ReplicaScaling
from trtspec.capacity.demand import SimulatedRequest
from trtspec.capacity.tempo import Replica
from trtspec.capacity.worker import Done, Worker

Routing = Literal["random", "least_requests"]
"""`random` is how a Kubernetes Service routes connections (kube-proxy with iptables). `least_requests` is how
gateways route that count requests."""


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
        # Among replicas with equally few requests it takes the next one.
        return min((*ready[turn:], *ready[:turn]), key=lambda worker: worker.present)


_ARRIVAL, _TURN, _READY, _SCRAPE, _SYNC = range(5)


@dataclass(frozen=True, slots=True)
class Setup:
    """The fleet of a simulation: equal replicas."""

    replica: Replica
    replicas: int
    """The number of replicas at the beginning."""
    routing: Routing = "random"
    scaling: ReplicaScaling | None = None
    """The autoscaler's options; None keeps the number of replicas."""


@dataclass(frozen=True, slots=True)
class FleetOutcome:
    """The result of a simulation, which ends when the last request is answered."""

    done: tuple[Done, ...]
    """The requests, in the order of their last tokens."""
    seconds: float
    """The time until the last answer."""
    present: float
    """The mean number of requests in the fleet."""
    replicas: float
    """The mean number of replicas, starting ones included."""
    use: float
    """The share of time in which a ready replica was at work."""
    started: tuple[float, ...] = ()
    """The times at which further replicas became ready."""

    def between(self, begin: float, end: float) -> tuple[Done, ...]:
        """Returns the requests that came between two times."""
        return tuple(one for one in self.done if begin <= one.job.arrival < end)


def simulate(
    setup: Setup, jobs: Sequence[SimulatedRequest], seed: int, advance: Advance | None = None
) -> FleetOutcome:
    """Returns the outcome of requests, which are in order of arrival.

    `advance` is called after each hundred arrivals.
    """
    return _Simulation(setup, jobs, seed, advance).run()


class _Simulation:
    def __init__(
        self, setup: Setup, jobs: Sequence[SimulatedRequest], seed: int, advance: Advance | None
    ) -> None:
        self._setup, self._jobs, self._seed, self._advance = setup, jobs, seed, advance
        self._router = Router(setup.routing, seed)
        self._order = count()
        self._events: list[tuple[float, int, int, Worker | None, int]] = []
        self._ready = [self._worker() for _ in range(setup.replicas)]
        self._starting = 0
        self._leaving = 0
        self._draining: list[Worker] = []
        self._scaler = Autoscaler(setup.scaling) if setup.scaling else None
        self._scraped = 0
        self._next = 0
        self._done: list[Done] = []
        self._now = self._present_s = self._replicas_s = self._ready_s = 0.0
        self._present = 0
        self._workers = list(self._ready)
        self._started: list[float] = []

    def run(self) -> FleetOutcome:
        self._await_job()
        if scaling := self._setup.scaling:
            self._push(scaling.scrape_s, _SCRAPE)
            # Prometheus and the autoscaler run on clocks of their own; on average they are half a period
            # apart.
            self._push(1.5 * scaling.sync_s, _SYNC)
        while self._next < len(self._jobs) or self._present:
            time, _, kind, worker, version = heapq.heappop(self._events)
            if kind == _TURN and worker is not None and version != worker.version:
                continue
            self._pass(time)
            if kind == _ARRIVAL:
                self._arrive()
            elif kind == _TURN and worker is not None:
                self._finish(worker)
            elif kind == _READY:
                self._serve()
            elif kind == _SCRAPE:
                self._scrape()
            else:
                self._sync()
        busy = sum(worker.busy_s for worker in self._workers)
        return FleetOutcome(
            done=tuple(self._done),
            seconds=self._now,
            present=self._present_s / self._now if self._now else 0.0,
            replicas=self._replicas_s / self._now if self._now else float(self._setup.replicas),
            use=busy / self._ready_s if self._ready_s else 0.0,
            started=tuple(self._started),
        )

    def _worker(self) -> Worker:
        return Worker(self._setup.replica, f"drafts {self._seed} {next(self._order)}")

    def _push(self, time: float, kind: int, worker: Worker | None = None) -> None:
        version = worker.version if worker else 0
        heapq.heappush(self._events, (time, next(self._order), kind, worker, version))

    def _pass(self, time: float) -> None:
        passed, self._now = time - self._now, time
        serving = len(self._ready) + len(self._draining)
        self._present_s += passed * self._present
        self._ready_s += passed * serving
        self._replicas_s += passed * (serving + self._starting)

    def _await_job(self) -> None:
        if self._next < len(self._jobs):
            self._push(self._jobs[self._next].arrival, _ARRIVAL)

    def _arrive(self) -> None:
        job = self._jobs[self._next]
        self._next += 1
        if self._advance and self._next % 100 == 0:
            self._advance(100)
        worker = self._router.choose(self._ready)
        before = worker.version
        worker.take(job, self._now)
        self._present += 1
        if worker.version != before:
            self._go_on(worker)
        self._await_job()

    def _finish(self, worker: Worker) -> None:
        done = worker.finish(self._now)
        self._done += done
        self._present -= len(done)
        self._go_on(worker)
        if not worker.present and worker in self._draining:
            self._draining.remove(worker)

    def _go_on(self, worker: Worker) -> None:
        if (end := worker.end) is not None:
            self._push(end, _TURN, worker)

    def _serve(self) -> None:
        """Makes a replica ready; if it is no longer needed, it ends at once."""
        self._starting -= 1
        if self._leaving:
            self._leaving -= 1
            return
        worker = self._worker()
        self._workers.append(worker)
        self._ready.append(worker)
        self._started.append(self._now)

    def _scrape(self) -> None:
        assert self._setup.scaling is not None
        self._scraped = sum(worker.present for worker in self._ready)
        self._push(self._now + self._setup.scaling.scrape_s, _SCRAPE)

    def _sync(self) -> None:
        scaling = self._setup.scaling
        assert scaling is not None
        assert self._scaler is not None
        coming = self._starting - self._leaving
        replicas = len(self._ready) + coming
        wanted = self._scaler.wanted(self._scraped, len(self._ready), replicas, self._now)
        for _ in range(replicas, wanted):
            self._starting += 1
            self._push(self._now + scaling.start_s, _READY)
        for _ in range(wanted, replicas):
            self._give_up()
        self._push(self._now + scaling.sync_s, _SYNC)

    def _give_up(self) -> None:
        """Ends a replica: a starting one, or else the newest, which first answers its requests."""
        if self._starting > self._leaving:
            self._leaving += 1
            return
        worker = self._ready.pop()
        if worker.present:
            self._draining.append(worker)
