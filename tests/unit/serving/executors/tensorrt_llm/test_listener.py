"""How the thread of the responses ends."""

from __future__ import annotations

import threading
from typing import Any

from trtspec.serving.executors.tensorrt_llm.bindings import ResponseThread


class Engine:
    """Raises when it is shut down, as an executor does that is asked for responses a moment too late."""

    def __init__(self) -> None:
        self._down = threading.Event()

    def await_responses(self) -> list[Any]:
        assert self._down.wait(120)
        raise RuntimeError("Shutdown called")

    def shutdown(self) -> None:
        self._down.set()


def test_an_engine_that_is_shut_down_has_not_failed() -> None:
    failures: list[str] = []
    ResponseThread(Engine(), lambda responses: None, failures.append).shutdown()
    assert failures == []


def test_one_that_raises_by_itself_has() -> None:
    engine, failed = Engine(), threading.Event()
    failures: list[str] = []

    def hear(problem: str) -> None:
        failures.append(problem)
        failed.set()

    ResponseThread(engine, lambda responses: None, hear)
    engine.shutdown()
    assert failed.wait(120)
    assert failures == ["Shutdown called"]
