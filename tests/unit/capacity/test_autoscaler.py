"""The autoscaler beside what Kubernetes documents of its own."""

from __future__ import annotations

import pytest

from trtspec.capacity.autoscaler import Autoscaler, ReplicaScaling


def autoscaler(least: int = 1, most: int = 1000) -> Autoscaler:
    return Autoscaler(ReplicaScaling(10.0, least, most, 60.0))


@pytest.mark.parametrize(
    ("each", "replicas", "wanted"),
    [
        (20, 4, 8),  # "if the current metric value is 200m, and the desired value is 100m, … doubled"
        (5, 4, 2),  # "if … 50m …, halved"
        (10.9, 50, 50),  # "skips scaling if the ratio is sufficiently close to 1.0", within 0.1
        (9.1, 50, 50),
        (11.5, 50, 58),  # ceil
    ],
)
def test_the_documented_ratio(each: float, replicas: int, wanted: int) -> None:
    scaler, present = autoscaler(), round(each * replicas)
    for minute in range(7):  # fewer are wanted for the five minutes of stabilization first
        found = scaler.wanted(present, replicas, replicas, 60.0 * minute)
    assert found == wanted


def test_it_at_most_doubles_or_adds_four() -> None:
    assert autoscaler().wanted(1000, 1, 1, 0.0) == 5
    assert autoscaler().wanted(1000, 10, 10, 0.0) == 20
    assert autoscaler(most=7).wanted(1000, 4, 4, 0.0) == 7
    assert autoscaler(least=3).wanted(0, 3, 3, 0.0) == 3


def test_what_is_not_ready_counts_as_idle_on_the_way_up_and_not_on_the_way_down() -> None:
    assert autoscaler().wanted(80, 2, 8, 0.0) == 8
    assert autoscaler().wanted(60, 2, 8, 0.0) == 8


def test_a_lull_of_less_than_five_minutes_takes_nothing_away() -> None:
    scaler = autoscaler()
    found = [scaler.wanted(80 if time == 150 else 10, 8, 8, float(time)) for time in range(0, 601, 15)]
    assert found[0] == 1  # nothing else was ever recommended
    assert set(found[10:31]) == {8}
    assert found[31] == 1
