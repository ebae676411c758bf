"""Progress of long work, as functions: who works needs to know nothing of terminals."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

Advance = Callable[[int], None]
# Entered, with a label and a size in bytes, around work that takes a while; what it yields hears of bytes
# done.
Watch = Callable[[str, int | None], AbstractContextManager[Advance]]


def unwatched(label: str, size: int | None) -> AbstractContextManager[Advance]:
    return nullcontext(lambda _: None)
