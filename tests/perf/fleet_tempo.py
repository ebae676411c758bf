"""How much the simulated first tokens of a fleet depend on the time of an iteration; JSON on stdout.

Two replicas with the times of the engines of `fleet_model.py`, simulated with the same arrivals as they are,
3 % faster and 3 % slower. A number is the change of the 95th percentile of first tokens, for each seed of
arrivals.
"""

from __future__ import annotations

import json
import statistics
import sys

from tests.perf.fleet import LENGTHS, PLACES, REPLICAS
from trtspec.capacity.demand import Demand, SimulatedRequest, jobs
from trtspec.capacity.simulation import Setup, simulate
from trtspec.capacity.steady import pace
from trtspec.capacity.tempo import Replica, SlowedTempo, Tempo, Turn
from trtspec.measure.bench.statistics import percentiles

SEEDS, DICE = range(8), range(5)
K, ACCEPTED = 4, 0.73
TARGET, DRAFT = (15e-3, 0.6e-3), (5e-3, 0.05e-3)
"""The seconds of a step, and of each row of it, as in `fleet_model.py`, which only a Triton can import."""


class PacedTempo:
    """The times of the paced engines; a prompt's tokens are rows of the target."""

    def __init__(self, drafts: int) -> None:
        self._drafts = drafts

    def turn(self, texts: int, context: float) -> Turn:
        survival = tuple(ACCEPTED**place for place in range(1, self._drafts + 1))
        drafting_s = self._drafts * (DRAFT[0] + DRAFT[1] * texts)
        return Turn(TARGET[0] + TARGET[1] * texts * (1 + self._drafts) + drafting_s, survival, drafting_s)

    def prompt_s(self, tokens: float, has_drafts: bool) -> float:
        return TARGET[1] * tokens


def main() -> None:
    found = {}
    for drafts in (0, K):
        tempo = PacedTempo(drafts)
        most = REPLICAS * pace(_replica(tempo), LENGTHS).most
        for use in (0.6, 0.8):
            for seconds in (30, 300):
                asked = [jobs(Demand(use * most, LENGTHS), seconds, seed) for seed in SEEDS]
                p95 = {
                    factor: [_first_token(SlowedTempo(tempo, factor), one) for one in asked]
                    for factor in (1.0, 0.97, 1.03)
                }
                found[f"K = {drafts}, use {use}, {seconds} s"] = {
                    f"{factor:g}": [
                        round(other / one - 1, 2) for one, other in zip(p95[1.0], p95[factor], strict=True)
                    ]
                    for factor in (0.97, 1.03)
                }
    json.dump(found, sys.stdout, indent=1)
    print()


def _first_token(tempo: Tempo, asked: list[SimulatedRequest]) -> float:
    setup = Setup(_replica(tempo), REPLICAS, "least_requests")
    runs = [simulate(setup, asked, seed) for seed in DICE]
    found = [percentiles([one.time_to_first_token for one in run.done]) for run in runs]
    return statistics.median(one.p95 for one in found if one)


def _replica(tempo: Tempo) -> Replica:
    return Replica(tempo, PLACES, None, 0, 256, 1)


if __name__ == "__main__":
    main()
