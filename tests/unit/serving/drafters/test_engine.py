"""What the draft engine is asked: nothing that it would refuse."""

from __future__ import annotations

from trtspec.serving.drafters.engine import (
    FIRST_REST_S,
    LONGEST_REST_S,
    MAX_FAILURES,
    CircuitBreaker,
    draft_request,
)
from trtspec.serving.executor import Limits, Request
from trtspec.serving.executors.validation import validate

DRAFT = Limits(max_batch_size=4, max_input_len=63, max_seq_len=64, max_draft_len=0, vocab_size=90)


def test_tokens_that_the_draft_lacks_are_not_in_a_request() -> None:
    """A padded vocabulary of the target has more tokens; any of them may end a text or be banned."""
    target_only = Request(
        [1, 2], 4, end_id=95, bad_words=[[3, 95], [95], [3, 4]], embedding_bias={5: 2.0, 95: -1.0}
    )
    request = draft_request(target_only, DRAFT)
    assert (request.end_id, request.bad_words, request.embedding_bias) == (None, [[3, 4]], {5: 2.0})
    validate(request, DRAFT)


def test_a_draft_request_keeps_the_tokens_that_the_draft_model_has() -> None:
    request = Request([1, 2], 4, end_id=89, bad_words=[[89]], embedding_bias={89: 2.0})
    assert draft_request(request, DRAFT) == request


def begin(breaker: CircuitBreaker, now: float) -> int:
    period = breaker.begin(now)
    assert period is not None
    return period


def broken(now: float = 0.0) -> CircuitBreaker:
    breaker = CircuitBreaker()
    for _ in range(MAX_FAILURES):
        breaker.failed(begin(breaker, now), now)
    assert not breaker.is_closed()
    return breaker


def test_failures_in_a_row_are_a_rest() -> None:
    breaker = CircuitBreaker()
    for _ in range(10):
        for _ in range(MAX_FAILURES - 1):
            breaker.failed(begin(breaker, 0.0), 0.0)
        breaker.succeeded(begin(breaker, 0.0))
    assert breaker.is_closed()
    assert broken().begin(0.0) is None


def test_after_the_rest_one_attempt_is_made() -> None:
    breaker = broken(now=100.0)
    assert breaker.begin(100.0 + FIRST_REST_S - 0.01) is None
    attempt = begin(breaker, 100.0 + FIRST_REST_S)
    assert breaker.begin(100.0 + FIRST_REST_S) is None
    breaker.succeeded(attempt)
    assert breaker.is_closed()
    assert breaker.begin(100.0 + FIRST_REST_S) is not None


def test_each_failed_attempt_doubles_the_rest_up_to_a_minute() -> None:
    breaker, now, rests = broken(), 0.0, []
    for _ in range(9):
        rest = next(rest for rest in range(1, 200) if not breaker.is_resting(now + rest))
        rests.append(rest)
        now += rest
        breaker.failed(begin(breaker, now), now)
    assert rests == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert LONGEST_REST_S == 60


def test_a_recovery_forgets_the_long_rests() -> None:
    breaker = broken()
    breaker.failed(begin(breaker, 10.0), 10.0)
    breaker.succeeded(begin(breaker, 20.0))
    for _ in range(MAX_FAILURES):
        breaker.failed(begin(breaker, 20.0), 20.0)
    assert breaker.is_resting(20.0 + FIRST_REST_S - 0.01)
    assert not breaker.is_resting(20.0 + FIRST_REST_S)


def test_a_late_failure_does_not_prolong_the_rest() -> None:
    breaker = CircuitBreaker()
    period = begin(breaker, 0.0)
    for _ in range(MAX_FAILURES + 13):
        breaker.failed(period, 0.0)
    breaker.failed(period, 0.5)
    assert not breaker.is_resting(FIRST_REST_S)


def test_a_late_failure_during_the_attempt_neither_doubles_the_rest_nor_allows_another_attempt() -> None:
    breaker = CircuitBreaker()
    before = begin(breaker, 0.0)
    for _ in range(MAX_FAILURES):
        breaker.failed(before, 0.0)
    attempt = begin(breaker, FIRST_REST_S)
    breaker.failed(before, FIRST_REST_S)
    assert breaker.begin(1000.0) is None
    breaker.succeeded(attempt)
    assert breaker.is_closed()


def test_a_late_cancel_during_the_attempt_does_not_allow_another_attempt() -> None:
    breaker = CircuitBreaker()
    before = begin(breaker, 0.0)
    for _ in range(MAX_FAILURES):
        breaker.failed(before, 0.0)
    begin(breaker, FIRST_REST_S)
    breaker.left(before)
    assert breaker.begin(1000.0) is None


def test_a_late_success_does_not_end_a_rest_or_an_attempt() -> None:
    breaker = CircuitBreaker()
    before = begin(breaker, 0.0)
    for _ in range(MAX_FAILURES):
        breaker.failed(before, 0.0)
    breaker.succeeded(before)
    assert breaker.is_resting(FIRST_REST_S - 0.01)
    attempt = begin(breaker, FIRST_REST_S)
    breaker.succeeded(before)
    assert not breaker.is_closed()
    breaker.failed(attempt, FIRST_REST_S)
    assert breaker.is_resting(FIRST_REST_S + 2 * FIRST_REST_S - 0.01)


def test_late_failures_after_the_recovery_do_not_begin_a_rest() -> None:
    breaker = CircuitBreaker()
    before = begin(breaker, 0.0)
    for _ in range(MAX_FAILURES):
        breaker.failed(before, 0.0)
    breaker.succeeded(begin(breaker, FIRST_REST_S))
    for _ in range(MAX_FAILURES):
        breaker.failed(before, FIRST_REST_S)
    assert breaker.is_closed()


def test_an_attempt_that_came_to_nothing_leaves_room_for_another() -> None:
    breaker = broken()
    breaker.left(begin(breaker, FIRST_REST_S))
    breaker.succeeded(begin(breaker, FIRST_REST_S))
    assert breaker.is_closed()
