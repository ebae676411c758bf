"""The liveness of the target: whether it may still answer."""

from __future__ import annotations

from trtspec.serving.executor import Executor


class Liveness:
    """Watches an executor's progress, and declares it lost after `timeout_s` seconds without any.

    `look` must be called periodically, with seconds of any one clock.
    """

    def __init__(self, executor: Executor, timeout_s: float) -> None:
        self._executor, self._timeout_s = executor, timeout_s
        self._progress, self._since = -1, 0.0
        self._lost: str | None = None

    @property
    def failure(self) -> str | None:
        """The reason why the executor will not answer any more, in one line; None while it may."""
        return self._lost or self._executor.failure

    def lose(self, why: str) -> None:
        """Declares the executor lost, for good."""
        self._lost = self._lost or why

    def look(self, now: float, is_busy: bool) -> None:
        """Checks the progress, which an executor must make only while it `is_busy` with requests."""
        progress = self._executor.progress
        if not is_busy or progress != self._progress:
            self._progress, self._since = progress, now
        elif now - self._since > self._timeout_s:
            self.lose(f"the target has requests, but has made no progress for {self._timeout_s:g} s")
