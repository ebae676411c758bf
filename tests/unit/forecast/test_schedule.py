"""K by the number of requests, from gains that are known."""

from __future__ import annotations

import pytest

from trtspec.forecast.schedule import DraftSchedule, LengthGain, LoadGains, schedule

Gains = dict[int, dict[int, float]]


def made(gains: Gains, *, is_measured: bool = True) -> DraftSchedule:
    levels = [
        LoadGains(streams, {n: LengthGain(value, value - 0.1, value + 0.1) for n, value in of.items()})
        for streams, of in gains.items()
    ]
    return schedule(levels, is_measured=is_measured, origin="measured somewhere")


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ({1: {2: 1.5, 4: 1.8}}, {1: 4}),
        ({1: {2: 0.8, 4: 0.7}}, {1: 0}),
        # Equal halfway between 1.6 / 1.0 and 1.0 / 1.6, by logarithms.
        ({4: {2: 1.6}, 16: {2: 1 / 1.6}}, {1: 2, 8: 0}),
        ({1: {2: 1.4, 4: 1.8}, 4: {2: 1.3, 4: 1.1}, 64: {2: 0.5, 4: 0.2}}, {1: 4, 3: 2, 9: 0}),
        # Less than 2 % better is no reason to change.
        ({1: {2: 1.79, 4: 1.8}, 4: {2: 1.51, 4: 1.5}}, {1: 4}),
        # A larger K at a larger load is noise.
        ({1: {2: 1.5, 4: 1.4}, 4: {2: 1.2, 4: 1.6}}, {1: 2}),
        # A K that left early is known at one side alone.
        ({2: {2: 1.3, 4: 1.9}, 8: {2: 1.1}}, {1: 4, 4: 2}),
        ({1: {2: 1.5}, 2: {2: 0.9}}, {1: 2, 2: 0}),
    ],
)
def test_the_largest_gain_decides_and_thresholds_are_where_two_are_equal(
    gains: Gains, expected: dict[int, int]
) -> None:
    found = made(gains)
    assert found.by_requests == expected
    assert found.is_off == (set(expected.values()) == {0})
    lasts = [row.last for row in found.rows]
    assert lasts == [*(row.first - 1 for row in found.rows[1:]), None]


def test_the_table_says_from_how_many_to_how_many_with_what_gain() -> None:
    found = made({1: {2: 1.4, 4: 1.8}, 4: {2: 1.3, 4: 1.5}, 64: {2: 0.5, 4: 0.2}})
    assert [row.cells for row in found.rows] == [
        ("1 to 6", "4", "1.80 (1.70 to 1.90) at 1, 1.50 (1.40 to 1.60) at 4"),
        ("7 and more", "off", "K = 2: 0.50 (0.40 to 0.60) at 64"),
    ]


def test_a_recipe_has_one_table_and_a_forecast_says_that_it_is_none_that_was_measured() -> None:
    recipe = "# Mine.\nname: pair\n"
    forecast = made({1: {2: 1.4}}, is_measured=False).written(recipe)
    assert forecast.splitlines()[0] == "# schedule: NOT MEASURED: measured somewhere"
    assert forecast.endswith(recipe)
    measured = made({1: {2: 1.4}}).written(forecast)
    assert "NOT MEASURED" not in measured
    assert measured.count("# schedule: ") == 3
