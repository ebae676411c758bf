"""Progress of long work, as functions: who works needs to know nothing of terminals."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Advance(Protocol):
    """Hears of progress."""

    def __call__(self, amount: int, note: str = "", /) -> None:
        """So many bytes more are done; `note` says what is being done now, if that is known."""
        ...


# Entered, with a label and a size in bytes, around work that takes a while; what it yields hears of bytes
# done.
Watch = Callable[[str, int | None], AbstractContextManager[Advance]]


def unwatched(label: str, size: int | None) -> AbstractContextManager[Advance]:
    return nullcontext(lambda *_: None)
