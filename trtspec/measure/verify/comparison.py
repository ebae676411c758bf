"""Compares two answers to the same prompt."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from trtspec.measure.verify.subject import Row, SubjectAnswer


def first_difference(one: SubjectAnswer, other: SubjectAnswer) -> int | None:
    """Returns the index of the first token that differs; None if all are the same.

    An answer that stops without an end while the other continues has reached a limit earlier: that is a
    difference.
    """
    places = enumerate(zip_longest(one.token_ids, other.token_ids))
    return next((place for place, (a, b) in places if a != b), None)


def common_rows(one: SubjectAnswer, other: SubjectAnswer) -> Iterator[tuple[Row, Row]]:
    """Yields both rows at each position after the same text, including the first difference."""
    differs = first_difference(one, other)
    same = len(one.token_ids) if differs is None else differs + 1
    yield from list(zip(one.rows, other.rows, strict=False))[:same]
