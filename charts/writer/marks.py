"""Marks: values that stand for those which a user of the chart will give.

The renderer is run on them as on any other values. It places them, joins them with text and adds numbers to
them, and what comes out says where each one goes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

Path = tuple[str, ...]
"""The keys of a value from `.Values` on."""

FIRST, SECOND = "*1", "*2"
"""The items of a list of marks. What is made of each of them is alike, and what is made of both is not."""

_BEGIN, _MIDDLE, _END = "\ue000", "\ue001", "\ue002"  # for private use: no text of ours has them
_MARK = re.compile(f"{_BEGIN}([^{_END}]*){_END}")


def text(path: Path, form: str = "%s") -> str:
    """Returns the mark of a text; of a dict or list of a user's own it is the only key or item."""
    return _BEGIN + _MIDDLE.join((form, *path)) + _END


class Number(int):
    """The mark of a number, and the sum of such marks and a known number."""

    paths: tuple[Path, ...]
    form: str

    def __new__(cls, paths: tuple[Path, ...], known: int = 0, form: str = "%d") -> Number:
        self = super().__new__(cls, known)
        self.paths, self.form = paths, form
        return self

    def __add__(self, other: int) -> Number:
        paths = other.paths if isinstance(other, Number) else ()
        return Number((*self.paths, *paths), int(self) + int(other))

    __radd__ = __add__

    def __mul__(self, times: int) -> Number:
        return Number(self.paths * times, int(self) * times)

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Number) and (self.paths, int(self)) == (other.paths, int(other))

    def __hash__(self) -> int:
        return hash((self.paths, int(self)))

    def __str__(self) -> str:
        if len(self.paths) != 1 or int(self):
            raise ValueError("a sum in a text has no mark")
        return text(self.paths[0], self.form)

    def __repr__(self) -> str:
        return f"Number({self.paths}, {int(self)})"

    def __format__(self, form: str) -> str:
        return str(self)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a text: letters as they are, or a value and the form that Go's printf gives it."""

    letters: str = ""
    path: Path | None = None
    form: str = ""


def pieces(marked: str) -> list[Piece]:
    """Returns what a text is made of."""
    found, at = list[Piece](), 0
    for mark in _MARK.finditer(marked):
        if letters := marked[at : mark.start()]:
            found.append(Piece(letters))
        form, *path = mark[1].split(_MIDDLE)
        found.append(Piece(path=tuple(path), form=form))
        at = mark.end()
    return [*found, Piece(marked[at:])] if at < len(marked) else found


def whole(value: Any) -> Path | None:
    """Returns the path of the value that a text or number is nothing but, None for any other."""
    if isinstance(value, Number) and len(value.paths) == 1 and not int(value):
        return value.paths[0]
    if isinstance(value, str) and (found := _MARK.fullmatch(value)):
        return tuple(found[1].split(_MIDDLE)[1:])
    return None


@dataclass(frozen=True, slots=True)
class Each:
    """What is made of each item of a list: of the one with the path `(*over, FIRST)`."""

    over: Path
    item: Any


def folded(part: Any, scope: Path = ()) -> Any:
    """Returns a part of an object in which each two things that are made of a list's items are an `Each`.

    Raises ValueError for what is made of a list as a whole.
    """
    if isinstance(part, dict):
        return {key: folded(inner, scope) for key, inner in part.items()}
    if isinstance(part, str) and any(SECOND in path for path in paths(part)):
        raise ValueError(f"{part!r} is joined of a list's items")
    if not isinstance(part, list):
        return part
    found, rest = list[Any](), list(part)
    while rest:
        item = rest.pop(0)
        if over := _repeated(item, scope):
            if not rest or _second(item, over) != rest.pop(0):
                raise ValueError(f"a list is made of some items of {'.'.join(over)} alone")
            item = Each(over, folded(item, (*over, FIRST)))
        else:
            item = folded(item, scope)
        found.append(item)
    return found


def _repeated(item: Any, scope: Path) -> Path | None:
    """Returns the list of whose first item, and not of the second, a thing is made."""
    of = paths(item)
    for path in sorted(of):
        if FIRST in path[len(scope) :]:
            over = path[: path.index(FIRST, len(scope))]
            if not any(other[: len(over) + 1] == (*over, SECOND) for other in of):
                return over
    return None


def _second(part: Any, over: Path) -> Any:
    """Returns what a thing that is made of a list's first item is for the second."""
    if isinstance(part, dict):
        return {_second(key, over): _second(inner, over) for key, inner in part.items()}
    if isinstance(part, list):
        return [_second(inner, over) for inner in part]
    if isinstance(part, Number):
        found = tuple(
            (*over, SECOND, *path[len(over) + 1 :]) if (*over, FIRST) == path[: len(over) + 1] else path
            for path in part.paths
        )
        return Number(found, int(part), part.form)
    if isinstance(part, str):
        return part.replace(_MIDDLE.join((*over, FIRST)), _MIDDLE.join((*over, SECOND)))
    return part


def paths(value: Any) -> set[Path]:
    """Returns every value that a part of an object is made of."""
    if isinstance(value, Number):
        return set(value.paths)
    if isinstance(value, str):
        return {piece.path for piece in pieces(value) if piece.path}
    if isinstance(value, dict):
        return set[Path]().union(*(paths(part) for item in value.items() for part in item))
    if isinstance(value, list):
        return set[Path]().union(*map(paths, value))
    return set()
