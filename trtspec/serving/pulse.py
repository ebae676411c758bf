"""Whether the target is still alive."""

from __future__ import annotations

from trtspec.serving.executor import Executor


class Pulse:
    """Watches an executor's progress; `failure` says why it will never answer again, once that is so.

    `look` is to be called now and then, with seconds of any one clock.
    """

    def __init__(self, executor: Executor, timeout_s: float) -> None:
        self._executor, self._timeout_s = executor, timeout_s
        self._progress, self._since = -1, 0.0
        self._lost: str | None = None

    @property
    def failure(self) -> str | None:
        return self._lost or self._executor.failure

    def lose(self, why: str) -> None:
        """Nobody need look any more."""
        self._lost = self._lost or why

    def look(self, now: float, is_busy: bool) -> None:
        """`is_busy` is whether the engine has requests, without which it need not make progress."""
        progress = self._executor.progress
        if not is_busy or progress != self._progress:
            self._progress, self._since = progress, now
        elif now - self._since > self._timeout_s:
            self.lose(f"the target has requests, and has made no progress for {self._timeout_s:g} s")
