"""The closed forms beside scipy's distributions and what textbooks print."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import poisson

from trtspec.capacity.queueing import QueueStates, states, stretch


def found(rate: float, service: list[float]) -> QueueStates:
    queue = states(rate, service)
    assert queue is not None
    return queue


@given(places=st.integers(1, 200), use=st.floats(0.01, 0.99), each=st.floats(0.01, 100))
def test_places_of_equal_speed_are_erlangs(places: int, use: float, each: float) -> None:
    """Erlang's C of scipy's Poisson distribution: his B is the truncated one."""
    load = places * use
    blocked = poisson.pmf(places, load) / poisson.cdf(places, load)
    waits = blocked / (1 - use * (1 - blocked))
    queue = found(load * each, [each * number for number in range(1, places + 1)])
    assert queue.full == pytest.approx(waits, rel=1e-6, abs=1e-12)
    assert queue.use == pytest.approx(use)
    assert queue.mean_wait == pytest.approx(waits / (places * each * (1 - use)), rel=1e-6, abs=1e-9)
    assert queue.mean_present == pytest.approx(load + waits * use / (1 - use), rel=1e-6)
    assert sum(queue.shares) + queue.full == pytest.approx(1)


def test_shared_engines_have_geometric_states() -> None:
    """Processor sharing of one server: n are there with probability (1 - use) use^n (Kleinrock II, 4.4)."""
    queue = found(0.6, [1.0] * 12)
    assert queue.shares == pytest.approx([0.4 * 0.6**number for number in range(12)])
    assert queue.mean_present == pytest.approx(1.5)


def test_waits_are_exponential_behind_full_places() -> None:
    queue = found(3.0, [1.0, 2.0, 3.0, 4.0])
    assert queue.wait(1 - queue.full * math.exp(-2)) == pytest.approx(2.0)
    assert queue.wait(1 - queue.full * math.exp(-2), 3.0) == pytest.approx(6.0)
    assert queue.wait(1 - queue.full * math.exp(-2), 0.0) == 0
    assert queue.wait(1 - queue.full) == queue.wait(0.01) == 0


def test_more_than_the_engines_bear_is_told() -> None:
    assert states(4.0, [1.0, 4.0]) is None
    assert states(3.99, [1.0, 4.0]) is not None


def test_allen_and_cunneens_stretch_is_pollaczeks_for_one_server() -> None:
    """M/D/1 waits half as long as M/M/1, M/G/1 `(1 + c) / 2` times as long."""
    assert stretch(1.0, 0.0) == 0.5
    assert stretch(1.0, 3.0) == 2.0
