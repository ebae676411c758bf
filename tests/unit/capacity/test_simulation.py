"""The simulation beside closed forms, and what must hold of every run."""

from __future__ import annotations

from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.capacity.tempos import STEP_S, Flat, exponential, mean_end_to_end, replica
from trtspec.capacity.autoscaler import ReplicaScaling
from trtspec.capacity.demand import Demand, Lengths, SimulatedRequest, jobs
from trtspec.capacity.queueing import states
from trtspec.capacity.simulation import Routing, Setup, simulate
from trtspec.capacity.tempo import Replica


@pytest.mark.parametrize(("places", "use"), [(1, 0.5), (4, 0.75), (16, 0.8)])
def test_exponential_answers_wait_as_in_m_m_k(places: int, use: float) -> None:
    lengths = exponential(100)
    mean = lengths.output * STEP_S
    demand = Demand(use * places / mean, lengths)
    runs = [
        simulate(Setup(replica(places=places), 1), jobs(demand, 15_000 / demand.rate, seed), seed)
        for seed in range(3)
    ]
    queue = states(demand.rate, [number / mean for number in range(1, places + 1)])
    assert queue is not None
    waits = [one.time_to_first_token for run in runs for one in run.done]
    assert sum(wait > 2 * STEP_S for wait in waits) / len(waits) == pytest.approx(queue.full, rel=0.1)
    assert fmean(mean_end_to_end(run) for run in runs) - mean == pytest.approx(queue.mean_wait, rel=0.35)
    assert fmean(run.present for run in runs) == pytest.approx(queue.mean_present, rel=0.04)


def test_equal_answers_wait_as_in_m_d_1() -> None:
    """Pollaczek and Khinchine: the mean wait is `use / (2 (1 - use))` answers."""
    answer, use = 100, 0.7
    demand = Demand(use / (answer * STEP_S), Lengths(((1, answer),)))
    outcome = simulate(Setup(replica(places=1), 1), jobs(demand, 30_000 / demand.rate, 5), 5)
    wait = mean_end_to_end(outcome) / (answer * STEP_S) - 1
    assert wait == pytest.approx(use / (2 * (1 - use)), rel=0.08)
    assert outcome.use == pytest.approx(use, rel=0.03)


def test_drafts_give_the_tokens_of_their_acceptance() -> None:
    """With 0.8, 0.6 and 0.3 of the places surviving a turn gives 2.7 tokens."""
    tempo = Flat(survival=(0.8, 0.6, 0.3))
    asked = [SimulatedRequest(float(number), 1, 2_700) for number in range(40)]
    outcome = simulate(Setup(replica(tempo, places=64), 1), asked, 0)
    turns = [one.end_to_end / STEP_S for one in outcome.done]
    assert sum(turns) / len(turns) == pytest.approx(1000, rel=0.01)


def test_prompts_hold_up_the_others() -> None:
    """A prompt of 100 tokens takes a tenth of a second, in which nobody else has a token."""
    tempo = Flat(prompt=1e-3)
    outcome = simulate(
        Setup(replica(tempo), 1), [SimulatedRequest(0.0, 1, 1000), SimulatedRequest(0.5, 100, 1)], 0
    )
    short, long = sorted(outcome.done, key=lambda one: one.job.output)
    assert short.time_to_first_token == pytest.approx(0.101, abs=2 * STEP_S)
    assert long.end_to_end == pytest.approx(1.0 + 0.1, abs=3 * STEP_S)


@pytest.mark.parametrize(
    ("arrival", "waited"),
    [(0.002, 0.010), (0.0039, 0.010), (0.007, 0.013)],
)
def test_whoever_comes_while_drafts_are_proposed_is_verified_with_them(arrival: float, waited: float) -> None:
    """Of a turn of 10 ms the first 4 are drafts, and all wait for the draft of who comes in these."""
    tempo = Flat(0.010, (0.0,), drafting=0.004)
    outcome = simulate(
        Setup(replica(tempo), 1), [SimulatedRequest(0.0, 1, 100), SimulatedRequest(arrival, 1, 1)], 0
    )
    short, long = sorted(outcome.done, key=lambda one: one.job.output)
    assert short.time_to_first_token == pytest.approx(waited)
    assert long.end_to_end == pytest.approx(1.0 + (arrival if arrival < 0.004 else 0.0))


def test_long_prompts_are_read_in_parts() -> None:
    tempo = Flat(prompt=1e-3)
    outcome = simulate(Setup(replica(tempo, most_rows=100), 1), [SimulatedRequest(0.0, 250, 1)], 0)
    assert outcome.done[0].time_to_first_token == pytest.approx(0.25 + 3 * STEP_S)


def test_the_cache_bounds_who_is_at_work() -> None:
    """Room for two texts of 100 tokens: the third begins when one of them ends; they come one by one."""
    asked = [SimulatedRequest(0.0, 50, 50)] * 3
    outcome = simulate(Setup(replica(kv_tokens=200), 1), asked, 0)
    firsts = sorted(one.time_to_first_token for one in outcome.done)
    assert firsts == pytest.approx([STEP_S, 2 * STEP_S, 51 * STEP_S])


def test_whoever_counts_shares_better() -> None:
    demand = Demand(0.85 * 3 * 4 / 0.5, exponential(500))
    asked = jobs(demand, 300, 7)
    ways: tuple[Routing, ...] = ("random", "least_requests")
    found = [mean_end_to_end(simulate(Setup(replica(), 3, way), asked, 7)) for way in ways]
    assert found == sorted(found, reverse=True)


def test_an_autoscaler_is_late_by_what_it_waits_for() -> None:
    """A burst at 100 s is seen at a scrape, acted on at the next look, and served after a start."""
    asked = [SimulatedRequest(number / 2, 1, 900) for number in range(200)]
    asked += [SimulatedRequest(100 + number / 10, 1, 900) for number in range(2500)]
    scaling = ReplicaScaling(target=2.0, least=1, most=30, start_s=60.0)
    outcome = simulate(Setup(replica(), 1, "least_requests", scaling), asked, 0)
    assert outcome.started[0] > 100 + 60
    assert outcome.started[0] < 100 + 60 + scaling.scrape_s + 2 * scaling.sync_s
    assert len(outcome.started) > 4
    late = simulate(Setup(replica(), 1, "least_requests"), asked, 0)
    assert mean_end_to_end(outcome) < mean_end_to_end(late) / 2


def _setups() -> st.SearchStrategy[Setup]:
    replicas = st.builds(
        Replica,
        st.builds(
            Flat, st.floats(1e-4, 0.1), st.sampled_from([(), (0.7, 0.5)]), st.sampled_from([0.0, 1e-4])
        ),
        places=st.integers(1, 8),
        kv_tokens=st.none() | st.integers(1, 400),
        longest_draft=st.integers(0, 8),
        most_rows=st.integers(16, 256),
        gpus=st.just(1),
    )
    scaling = st.none() | st.builds(
        ReplicaScaling,
        st.floats(0.5, 8),
        st.just(1),
        st.integers(1, 6),
        st.floats(0.5, 50),
        stabilization_s=st.just(30.0),
    )
    routings: st.SearchStrategy[Routing] = st.sampled_from(["random", "least_requests"])
    return st.builds(Setup, replicas, st.integers(1, 4), routings, scaling)


def _jobs() -> st.SearchStrategy[list[SimulatedRequest]]:
    one = st.builds(SimulatedRequest, st.floats(0, 60), st.integers(1, 120), st.integers(1, 80))
    return st.lists(one, min_size=1, max_size=60).map(
        lambda found: sorted(found, key=lambda job: job.arrival)
    )


@settings(max_examples=60, deadline=None)
@given(setup=_setups(), asked=_jobs(), seed=st.integers(0, 5))
def test_nothing_is_lost_and_little_holds(setup: Setup, asked: list[SimulatedRequest], seed: int) -> None:
    """Little: the mean number of requests is their rate times the mean time that each stays."""
    outcome = simulate(setup, asked, seed)
    assert len(outcome.done) == len(asked)
    assert all(one.job.arrival < one.first <= one.ended for one in outcome.done)
    stayed = sum(one.end_to_end for one in outcome.done)
    assert outcome.present * outcome.seconds == pytest.approx(stayed, rel=1e-9, abs=1e-9)
    assert outcome == simulate(setup, asked, seed)
    fastest = setup.replica.tempo.turn(1, 1).seconds / setup.replica.tempo.turn(1, 1).tokens
    longest = 3 if setup.replica.tempo.turn(1, 1).survival else 1
    for one in outcome.done:
        assert one.end_to_end >= one.job.output / longest * fastest * 0.999


def test_a_seed_is_another_run() -> None:
    demand = Demand(4.0, exponential(500))
    asked = [jobs(demand, 60, seed) for seed in (0, 0, 1)]
    assert asked[0] == asked[1] != asked[2]
    tempo = Flat(survival=(0.5,))
    ends = [mean_end_to_end(simulate(Setup(replica(tempo), 2), asked[0], seed)) for seed in (0, 0, 1)]
    assert ends[0] == ends[1] != ends[2]
