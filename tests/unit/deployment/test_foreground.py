"""Servers in the foreground, and when one that has ended is started again."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from trtspec.base.errors import ServerError, StuckError
from trtspec.deployment.server import Interrupted, Restarts, serve_in_foreground


class Served:
    """Starts servers, of which the first `dying` end when they are ready, and hears what becomes of them."""

    def __init__(self, log: Path, *, dying: int = 0, on_ready: Callable[[], None] = lambda: None) -> None:
        self.log, self.heard, self._dying, self._on_ready = log, list[str](), dying, on_ready
        log.write_text("one] loading\n")

    def __enter__(self) -> Callable[[], Any]:
        return self._start

    def __exit__(self, *_: object) -> None:
        self.heard.append("end")

    def _start(self) -> Served:
        self.heard.append("start")
        return self

    # The server.

    def is_ready(self) -> bool:
        return True

    def check_running(self) -> None:
        if self._dying:
            self._dying -= 1
            raise ServerError("tritonserver", "ended with status 1")

    def refuse(self, state: str) -> None:
        self.heard.append(state)

    def stop(self) -> None:
        self.heard.append("stop")

    # The listener.

    @contextmanager
    def starting(self) -> Iterator[Callable[[str], None]]:
        yield self.heard.append

    def ready(self) -> None:
        self.heard.append("ready")
        if not self._dying:
            self._on_ready()

    def said(self, line: str) -> None:
        self.heard.append(line)

    def failed(self, error: ServerError, delay: float) -> None:
        self.heard.append(f"{error.problem}, {delay:g} s")

    def stopping(self) -> None:
        self.heard.append("stopping")


def serve(served: Any, *, restart: bool = False, leave: bool = False) -> None:
    serve_in_foreground(served, served.log, Restarts(is_wanted=restart), served, leave=leave)


def tell() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_server_in_the_foreground_runs_until_a_signal_stops_it(tmp_path: Path) -> None:
    served = Served(tmp_path / "log", on_ready=tell)
    serve(served)
    assert served.heard == ["start", "ready", "stopping", "stop", "end"]


def test_one_that_is_to_be_left_is_not_stopped(tmp_path: Path) -> None:
    served = Served(tmp_path / "log")
    serve(served, leave=True)
    assert served.heard == ["start", "ready", "end"]


def test_one_that_ends_by_itself_ends_it(tmp_path: Path) -> None:
    served = Served(tmp_path / "log", dying=1)
    with pytest.raises(ServerError, match="ended with status 1"):
        serve(served)
    assert served.heard == ["start", "ready", "one] loading", "end"]


def test_a_server_that_dies_is_started_again_when_restart_is_asked_for(tmp_path: Path) -> None:
    served = Served(tmp_path / "log", dying=1, on_ready=tell)
    serve(served, restart=True)
    again = ["one] loading", "restarting", "ended with status 1, 1 s"]
    assert served.heard == ["start", "ready", *again, "start", "ready", "stopping", "stop", "end"]


def test_told_to_stop_before_it_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(tmp_path / "log")
    monkeypatch.setattr(served, "is_ready", tell)
    with pytest.raises(Interrupted):
        serve(served)
    assert served.heard == ["start", "end"]


def test_one_whose_log_somebody_has_removed_is_started_again(tmp_path: Path) -> None:
    served = Served(tmp_path / "log", dying=1, on_ready=tell)
    (tmp_path / "log").unlink()
    serve(served, restart=True)
    assert served.heard.count("ready") == 2


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


def test_progress_is_what_a_server_says_and_no_border_of_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listener hears of it again and again, also while the server is silent."""
    lines = iter(("I1 a.cc:1] loading\n", "+-----+\n| name |\n+=====+\n\n", "", "I2 b.cc:2] warming up\n"))
    served = Served(tmp_path / "log", on_ready=tell)
    served.log.write_text("")

    def says_more() -> bool:
        line = next(lines, None)
        with served.log.open("a") as log:
            log.write(line or "")
        return line is None

    monkeypatch.setattr(served, "is_ready", says_more)
    serve(served)
    said = ["loading", "loading", "loading", "warming up"]
    assert served.heard == ["start", *said, "ready", "stopping", "stop", "end"]
