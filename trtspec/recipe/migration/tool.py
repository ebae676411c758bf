"""A program whose command lines are read, and how it is found among the words of one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from trtspec.recipe.migration.reading import FlagReading

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_INTERPRETERS = re.compile(r"python[0-9.]*\Z")


@dataclass(frozen=True, slots=True)
class MigrationTool:
    """A program whose command is read into a recipe."""

    name: str
    """The program's name for people."""
    backend: str
    """The backend of a recipe that the program is."""
    starts: tuple[tuple[str, ...], ...]
    """The words that its command begins with, such as `vllm serve`, where it does not name an image."""
    read: Callable[[Sequence[str], FlagReading], None]
    """Reads the words behind the start."""
    images: tuple[str, ...] = ()
    """The names of container images that run the program, and that its command may begin with."""
    serves: str | None = None
    """The words for what it serves at once where its command does not say, such as "256 requests at once"."""
    finish: Callable[[FlagReading], None] | None = None
    """Writes into the recipe what only all commands of a text tell together."""
    is_part: bool = False
    """True if others stand beside it in a text, which are a recipe together."""

    def begins(self, words: Sequence[str]) -> tuple[int, int] | None:
        """Returns where the tool's name stands among the words, and where its own words begin."""
        for place in range(len(words)):
            for start in self.starts:
                found = (PurePosixPath(words[place]).name, *words[place + 1 : place + len(start)])
                if found == start:
                    return place, place + len(start)
            if any(image in words[place] for image in self.images):
                return place, place + 1
        return None


def tell_before(words: Sequence[str], reading: FlagReading) -> None:
    """Says what becomes of the words before a tool's name. Their values may be secrets and are not shown."""
    words = [word for word in words if not _INTERPRETERS.match(PurePosixPath(word).name)]
    for word in words:
        if _VARIABLE.match(word):
            reading.lose(word.partition("=")[0], "a variable of the environment, which a recipe has none of")
    starts = [word for word in words if not _VARIABLE.match(word)]
    if starts:
        what = "trtspec deploy starts servers and containers itself"
        reading.lose(" ".join(starts[:2]) + (" …" if len(starts) > 2 else ""), what)
