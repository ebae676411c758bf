"""The two ways of showing progress; `out.progress` chooses."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

_INTERVAL_S = 10.0


class Progress(Protocol):
    """Receives the progress of a piece of work."""

    def advance(self, amount: int = 1, note: str = "", /) -> None:
        """Reports that `amount` units more are done; `note` says what is being done now."""
        ...


class PlainProgress:
    """Prints a line at the start, one every ten seconds, and one at the end with the time that it took."""

    def __init__(
        self, label: str, total: int | None, unit: str, say: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        self._label, self._total, self._unit, self._say, self._clock = label, total, unit, say, clock
        self._done = 0

    def __enter__(self) -> PlainProgress:
        self._start = self._spoken = self._clock()
        self._say(f"{self._label} ...")
        return self

    def advance(self, amount: int = 1, note: str = "", /) -> None:
        self._done += amount
        now = self._clock()
        if now - self._spoken >= _INTERVAL_S:
            self._spoken = now
            so_far = note or self._amount()
            self._say(f"{self._label}: {so_far}{' after ' * bool(so_far)}{now - self._start:.0f} s")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._say(f"{self._label}: done in {self._clock() - self._start:.1f} s")

    def _amount(self) -> str:
        if self._total:
            return f"{100 * self._done // self._total} %"
        return f"{self._done} {self._unit}".rstrip() if self._done else ""


class BarProgress:
    """A bar that rich draws on stderr; at the end, a line with a tick and the time replaces it."""

    def __init__(
        self, label: str, total: int | None, unit: str, say: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        from rich import progress
        from rich.console import Console

        columns: list[ProgressColumn] = [progress.TextColumn("{task.description}", markup=False)]
        columns.append(progress.BarColumn() if total else progress.SpinnerColumn())
        if total:
            columns.append(progress.DownloadColumn() if unit == "B" else progress.MofNCompleteColumn())
        columns.append(progress.TimeElapsedColumn())
        console = Console(stderr=True)
        self._bar = progress.Progress(*columns, console=console, redirect_stdout=False, transient=True)
        self._label, self._task = label, self._bar.add_task(label, total=total)
        self._say, self._clock = say, clock

    def __enter__(self) -> BarProgress:
        self._start = self._clock()
        self._bar.start()
        return self

    def advance(self, amount: int = 1, note: str = "", /) -> None:
        self._bar.advance(self._task, amount)
        if note:
            self._bar.update(self._task, description=f"{self._label}: {note}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        self._say(f"{'✗' if error else '✓'} {self._label}  {self._clock() - self._start:.1f} s")
