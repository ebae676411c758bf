from __future__ import annotations

import pytest

from trtspec.base.units import gib, lacking, short, three_digits


@pytest.mark.parametrize(
    ("count", "words"),
    [(999, "999"), (999_400, "999 k"), (999_600, "1 M"), (999_999_999, "1 B"), (8_030_261_248, "8.03 B")],
)
def test_a_count_has_three_digits(count: int, words: str) -> None:
    assert short(count) == words


@pytest.mark.parametrize(
    ("size", "words"),
    [(999, "999 B"), (999_400, "999 kB"), (999_600, "1 MB"), (999_999_999_999, "1 TB")],
)
def test_bytes_have_three_digits(size: int, words: str) -> None:
    assert three_digits(size) == words


def test_two_sizes_that_differ_look_different() -> None:
    assert lacking(5_000_000, 40_000) == "5 MB, but 40 kB are free"
    assert lacking(10**9 + 1, 10**9) == "1,000,000,001 B, but 1,000,000,000 B are free"


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (80 << 30, "80.0 GiB"),
        (-(3 << 29), "-1.5 GiB"),
        (20 << 20, "20.0 MiB"),
        (3000, "2.9 KiB"),
        (7, "7 B"),
        (0, "0 GiB"),
    ],
)
def test_memory_that_is_there_is_never_zero(size: int, words: str) -> None:
    assert gib(size) == words
