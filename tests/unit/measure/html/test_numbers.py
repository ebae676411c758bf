"""Numbers have as many digits as one can use, and never say what they do not know."""

from __future__ import annotations

import pytest

from trtspec.measure.html import numbers


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0"), (0.123, "0.12"), (9.996, "10.0"), (12.34, "12.3"), (123.4, "123"), (1234.5, "1,234")],
)
def test_plain(value: float, words: str) -> None:
    assert numbers.plain(value) == words


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.0, "0%"), (0.004, "0.4%"), (0.734, "73%"), (0.99996, "99.99%"), (1.0, "100%"), (None, "-")],
)
def test_percent(share: float | None, words: str) -> None:
    assert numbers.percent(share) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(41.3e-6, "41.3 µs"), (0.0413, "41.3 ms"), (2.1, "2.10 s"), (360.0, "6 min"), (9000.0, "2.5 h")],
)
def test_duration(seconds: float, words: str) -> None:
    assert numbers.duration(seconds) == words


@pytest.mark.parametrize(
    ("change", "words"), [(0.123, "+12%"), (-0.03, "-3%"), (0.001, "0%"), (12.4, "13x"), (1.41, "2.4x")]
)
def test_change(change: float, words: str) -> None:
    assert numbers.change(change) == words


def test_an_unknown_number_is_shown_as_a_dash() -> None:
    assert {of(None) for of in (numbers.plain, numbers.percent, numbers.duration, numbers.times)} == {"-"}
