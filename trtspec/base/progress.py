"""Progress of long work as plain functions, so that the code that works knows nothing of terminals."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Advance(Protocol):
    """A function that long work calls to report its progress."""

    def __call__(self, amount: int, note: str = "", /) -> None:
        """Reports `amount` more bytes as done; `note` says what is being done now, if that is known."""
        ...


# A function of a label and a size in bytes, None if that is not known. The context that it returns is entered
# around long work and gives the function to which the work reports.
Progress = Callable[[str, int | None], AbstractContextManager[Advance]]


def no_progress(label: str, size: int | None) -> AbstractContextManager[Advance]:
    """A `Progress` that shows nothing."""
    return nullcontext(lambda *_: None)
