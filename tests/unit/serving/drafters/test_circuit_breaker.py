from __future__ import annotations

from trtspec.serving.drafters.engine import (
    FIRST_REST_S,
    LONGEST_REST_S,
    MAX_FAILURES,
    CircuitBreaker,
)


def broken(now: float = 0.0) -> CircuitBreaker:
    breaker = CircuitBreaker()
    for _ in range(MAX_FAILURES):
        assert breaker.may_try(now)
        breaker.failed(now)
    return breaker


def test_failures_in_a_row_are_a_rest() -> None:
    breaker = CircuitBreaker()
    for _ in range(10):
        for _ in range(MAX_FAILURES - 1):
            breaker.failed(0.0)
        breaker.succeeded()
    assert breaker.is_closed()
    assert breaker.may_try(0.0)
    assert not broken().may_try(0.0)


def test_after_the_rest_one_attempt_is_made() -> None:
    breaker = broken(now=100.0)
    assert not breaker.may_try(100.0 + FIRST_REST_S - 0.01)
    assert breaker.may_try(100.0 + FIRST_REST_S)
    assert not breaker.may_try(100.0 + FIRST_REST_S)
    breaker.succeeded()
    assert breaker.is_closed()
    assert breaker.may_try(100.0 + FIRST_REST_S)


def test_each_failed_attempt_doubles_the_rest_up_to_a_minute() -> None:
    breaker, now, rests = broken(), 0.0, []
    for _ in range(9):
        rest = next(rest for rest in range(1, 200) if breaker.may_try(now + rest))
        rests.append(rest)
        now += rest
        breaker.failed(now)
    assert rests == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert LONGEST_REST_S == 60


def test_late_failures_of_rounds_that_were_under_way_do_not_prolong_it() -> None:
    breaker = broken()
    for _ in range(13):
        breaker.failed(0.5)
    assert breaker.may_try(0.5 + FIRST_REST_S)


def test_an_attempt_that_came_to_nothing_leaves_room_for_another() -> None:
    breaker = broken()
    assert breaker.may_try(FIRST_REST_S)
    breaker.left()
    assert breaker.may_try(FIRST_REST_S)
