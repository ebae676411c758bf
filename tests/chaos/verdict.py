"""What may not be in the answers of a chaos run; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tests.chaos.clients import Answer
from tests.chaos.shots import Kind, Shot

ERROR_S = 10.0
"""An error comes so soon after its request, the end of its time limit, or the kill that it is told of."""
LARGE_S = 60.0


@dataclass(frozen=True)
class Up:
    """A time in which the server was known to serve; the kill that ends it may be told of later."""

    begin: float
    end: float


def violations(results: Iterable[tuple[Shot, Answer]], ups: Sequence[Up]) -> list[str]:
    return [
        f"request {shot.number} ({shot.kind.value}, {shot.wire}{', streams' * shot.stream}), "
        f"{answer.done_at - answer.sent_at:.2f} s: {problem}"
        for shot, answer in results
        for problem in _problems(shot, answer, ups)
    ]


def is_whole(answer: Answer) -> bool:
    return answer.is_over and answer.error is None


def _problems(shot: Shot, answer: Answer, ups: Sequence[Up]) -> Iterator[str]:
    if not answer.is_over and shot.leaves_s is None:
        yield f"no end; heard {answer.text[-40:]!r}"
    elif is_whole(answer):
        yield from _of_text(shot, answer)
    elif shot.case is not None and not shot.case.text.startswith(answer.text):
        yield f"wrong before its error or end: {answer.text!r}, not {shot.case.text!r}"
    if answer.is_over and answer.error is not None:
        yield from _of_error(shot, answer, answer.error, ups)


def _of_text(shot: Shot, answer: Answer) -> Iterator[str]:
    if shot.kind in (Kind.MALFORMED, Kind.LARGE):
        yield f"answered with {answer.text!r}: {shot.raw!r} {str(shot.values)[:200]}"
    elif shot.case is not None and answer.text != shot.case.text:
        yield f"wrong: {answer.text!r}, not {shot.case.text!r}"
    if answer.num_ends != shot.values.get("num_return_sequences", 1):
        yield f"{answer.num_ends} ends"


def _of_error(shot: Shot, answer: Answer, error: str, ups: Sequence[Up]) -> Iterator[str]:
    # Sent and answered while the server served, so that no kill excuses anything.
    in_peace = any(up.begin <= answer.sent_at and answer.done_at <= up.end for up in ups)
    took = answer.done_at - max([answer.sent_at, *(up.end for up in ups if up.end <= answer.done_at)])
    if took > (LARGE_S if shot.kind is Kind.LARGE else ERROR_S + (shot.limit_s or 0)):
        yield f"its error came late: {error}"
    if not in_peace:
        return
    if shot.kind in (Kind.WELL_FORMED, Kind.CANCELLED):
        yield f"status {answer.status}: {error}"
    if shot.kind is Kind.LIMITED and took < (shot.limit_s or 0):
        yield f"before its limit of {shot.limit_s} s: {error}"
    if shot.kind is not Kind.LARGE and error.startswith("connection:"):
        yield f"no answer: {error}: {shot.raw!r} {str(shot.values)[:200]}"
    if shot.kind is Kind.MALFORMED and not answer.status >= 400:
        yield f"status {answer.status}: {error}"
