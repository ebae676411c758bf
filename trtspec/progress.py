"""Progress of long work, as functions: who works needs to know nothing of terminals."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Advance(Protocol):
    """Is told how far a piece of work is."""

    def __call__(self, amount: int, note: str = "", /) -> None:
        """So many bytes more are done; `note` says what is being done now, if that is known."""
        ...


# Called with a label and a size in bytes; entered around work that takes a while, it yields what is to be
# told of the bytes that are done.
Progress = Callable[[str, int | None], AbstractContextManager[Advance]]


def no_progress(label: str, size: int | None) -> AbstractContextManager[Advance]:
    return nullcontext(lambda *_: None)
