"""A verdict that sees nothing would let every server pass."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.cases import Case
from tests.chaos.clients import Answer
from tests.chaos.shots import Kind, Shot
from tests.chaos.verdict import Up, violations

CASE = Case("def f(", 4, (), "a, b")
UPS = [Up(0, 100), Up(110, float("inf"))]


def shot(kind: Kind, **values: Any) -> Shot:
    case = CASE if kind in (Kind.WELL_FORMED, Kind.CANCELLED, Kind.LIMITED) else None
    return Shot(0, kind, "http", False, {}, case, **values)


def answer(
    text: str = "", error: str | None = None, sent: float = 10, took: float = 1, **values: Any
) -> Answer:
    found = {"status": 200 if error is None else 400, "num_ends": int(error is None), "is_over": True}
    return Answer(sent_at=sent, done_at=sent + took, text=text, error=error, **{**found, **values})


@pytest.mark.parametrize(
    ("sent", "heard"),
    [
        (shot(Kind.WELL_FORMED), answer("a, b")),
        (shot(Kind.WELL_FORMED), answer("a,", "the server has ended", sent=95, took=9)),
        (shot(Kind.WELL_FORMED), answer("", "the server is restarting", sent=105)),
        (shot(Kind.CANCELLED, leaves_s=1.0), answer("a,", is_over=False, num_ends=0)),
        (shot(Kind.LIMITED, limit_s=0.5), answer("a", "the time limit of the request passed")),
        (shot(Kind.LIMITED, limit_s=5.0), answer("a, b")),
        (shot(Kind.MALFORMED), answer("", "max_tokens is 0")),
        (shot(Kind.LARGE), answer("", "connection: reset")),
    ],
)
def test_the_verdict_accepts_every_allowed_answer(sent: Shot, heard: Answer) -> None:
    assert violations([(sent, heard)], UPS) == []


@pytest.mark.parametrize(
    ("sent", "heard", "said"),
    [
        (shot(Kind.WELL_FORMED), answer("a, c"), "wrong: 'a, c', not 'a, b'"),
        (shot(Kind.WELL_FORMED), answer("a, "), "wrong"),
        (shot(Kind.WELL_FORMED), answer("a, ba, b"), "wrong"),
        (shot(Kind.WELL_FORMED), answer("a, b", num_ends=2), "2 ends"),
        (shot(Kind.WELL_FORMED), answer("a, b", num_ends=0), "0 ends"),
        (shot(Kind.WELL_FORMED), answer(is_over=False, num_ends=0), "no end"),
        (shot(Kind.WELL_FORMED), answer("b", "ended", sent=95, took=9), "wrong before its error"),
        (shot(Kind.WELL_FORMED), answer("", "no place"), "status 400: no place"),
        (shot(Kind.WELL_FORMED), answer("", "the server has ended", sent=98, took=50), "came late"),
        (shot(Kind.WELL_FORMED), answer("", "the server is restarting", sent=101, took=11), "came late"),
        (shot(Kind.CANCELLED, leaves_s=1.0), answer("x", is_over=False, num_ends=0), "wrong before"),
        (shot(Kind.LIMITED, limit_s=5.0), answer("", "the time limit"), "before its limit"),
        (shot(Kind.LIMITED, limit_s=1.0), answer("", "the time limit", took=20), "came late"),
        (shot(Kind.MALFORMED), answer("hello"), "answered with 'hello'"),
        (shot(Kind.MALFORMED), answer("", "connection: reset"), "no answer"),
        (shot(Kind.MALFORMED), answer("", "max_tokens is 0", status=200), "status 200"),
        (shot(Kind.LARGE), answer("", "too large", took=80), "came late"),
        (shot(Kind.LARGE), answer("text"), "answered with 'text'"),
    ],
)
def test_the_verdict_reports_every_forbidden_answer(sent: Shot, heard: Answer, said: str) -> None:
    assert any(said in problem for problem in violations([(sent, heard)], UPS))
