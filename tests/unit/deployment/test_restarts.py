"""When a server that has ended is started again."""

from __future__ import annotations

from trtspec.base.errors import ServerError, StuckError
from trtspec.deployment.foreground import Restarts

ENDED = ServerError("tritonserver", "was killed by SIGKILL")
STUCK = StuckError("tritonserver", "waits")


def test_the_waits_grow_and_begin_anew_after_a_stable_minute() -> None:
    restarts = Restarts(is_wanted=True)
    assert [restarts.delay(ENDED, 5) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert [restarts.delay(ENDED, seconds) for seconds in (60, 5)] == [1, 2]


def test_five_starts_in_vain_are_enough() -> None:
    restarts = Restarts(is_wanted=True)
    assert [restarts.delay(ENDED, -1) for _ in range(4)] == [1, 2, 4, 8]
    assert restarts.delay(ENDED, 5) == 16
    assert [restarts.delay(ENDED, -1) for _ in range(5)] == [30, 30, 30, 30, None]


def test_without_being_asked_only_a_stuck_start_is_tried_again() -> None:
    assert Restarts(is_wanted=False).delay(ENDED, 100) is None
    restarts = Restarts(is_wanted=False)
    assert [restarts.delay(STUCK, -1) for _ in range(4)] == [0, 0, 0, None]
