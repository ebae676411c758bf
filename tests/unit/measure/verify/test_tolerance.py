"""The bound between a near tie and a fault, and the noise that it follows."""

from __future__ import annotations

import pytest

from trtspec.measure.verify.tolerance import CEILINGS, FLOORS, moved, tolerance


def test_the_bound_is_that_of_the_type_until_the_noise_is_greater() -> None:
    assert tolerance("float32", 1e-5).value == FLOORS["float32"]
    assert tolerance("float32", 0.01).value == 0.02
    assert tolerance("bfloat16", None).value == FLOORS["bfloat16"]
    assert tolerance(None, 0.01).value == FLOORS["bfloat16"]


def test_no_noise_excuses_a_token_that_is_much_less_likely() -> None:
    assert tolerance("bfloat16", 0.9).value == CEILINGS["bfloat16"] == 1
    assert not tolerance("bfloat16", 0.9).is_hopeless
    assert tolerance("bfloat16", 1.1).is_hopeless
    assert tolerance("float32", 0.1).is_hopeless
    assert tolerance("float32", 0.1).value < 0.1


def test_a_bound_that_is_given_holds() -> None:
    assert tolerance("bfloat16", 0.9, 0.125).value == 0.125


def test_rows_move_by_what_changes_between_their_tokens() -> None:
    row = {1: -0.5, 2: -1.0, 3: -4.0}
    assert moved(row, {token: value - 0.3 for token, value in row.items()}) == pytest.approx(0)
    assert moved(row, {1: -0.5, 2: -1.2, 3: -3.9}) == pytest.approx(0.3)
    assert moved(row, {1: -0.5, 2: -1.0, 4: -4.0}) == pytest.approx(0)


def test_a_likeliest_token_that_is_gone_moved_by_at_least_the_row() -> None:
    assert moved({1: -0.5, 2: -1.0}, {2: -0.1, 3: -6.1}) == pytest.approx(6)
    assert moved({2: -0.1, 3: -6.1}, {1: -0.5, 2: -1.0}) == pytest.approx(6)
