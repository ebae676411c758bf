"""Values with everything switched on and off: what there is to choose in them, and samples of the choices."""

from __future__ import annotations

import random
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel

from charts.writer.marks import FIRST, SECOND, Number, Path, text
from trtspec.kubernetes.helm import key_of

M = TypeVar("M", bound=BaseModel)
Option = bool | str
"""True and False are there and not there, for a value, a list or a dict, and for a switch what it says."""

_AT_RANDOM = 300
Choose = Callable[[Path, tuple[Option, ...]], Option]


@dataclass(frozen=True)
class Samples(Generic[M]):
    """Values of a model, each with the options that were chosen for it; the first has all that there is."""

    values: tuple[M, ...]
    options: tuple[Mapping[Path, Option], ...]

    @property
    def choices(self) -> dict[Path, tuple[Option, ...]]:
        """What can be chosen, by the path of the value."""
        found = dict[Path, dict[Option, None]]()
        for options in self.options:
            for path, option in options.items():
                found.setdefault(path, {})[option] = None
        return {path: tuple(options) for path, options in found.items()}

    def mask(self, path: Path, option: Option | None = None) -> int:
        """Returns the samples, as bits, in which there is a choice, and if one is given, with this option."""
        return sum(
            1 << number
            for number, options in enumerate(self.options)
            if path in options and option in (None, options[path])
        )


def sample(
    model: type[M], known: Mapping[Path, Any], forms: Sequence[Mapping[Path, Option]] = ({},)
) -> Samples[M]:
    """Returns samples: with all that there is, with nothing, each choice another way, and many at random.

    `known` are values that are not chosen. Each of the `forms`, choices that go together, has such samples.
    """
    choices, chance = dict(_choices(model, known)), random.Random(0)  # noqa: S311
    assigned: list[Mapping[Path, Option]] = []
    for first in (0, -1):
        base = {path: options[first] for path, options in choices.items()}
        assigned += [{**base, path: option} for path, options in choices.items() for option in options]
    for _ in range(_AT_RANDOM):
        assigned.append({path: chance.choice(options) for path, options in choices.items()})
    wanted = [{**assignment, **form} for form in forms for assignment in assigned]
    values, chosen = list[M](), dict[tuple[tuple[Path, Option], ...], None]()
    for assignment in wanted:
        asked: dict[Path, Option] = {}
        value = _build(model, (), known, _choosing(assignment, asked))
        key = tuple(asked.items())
        if key not in chosen:
            chosen[key] = None
            values.append(value)
    return Samples(tuple(values), tuple(dict(each) for each in chosen))


def _choosing(assignment: Mapping[Path, Option], asked: dict[Path, Option]) -> Choose:
    def choose(path: Path, options: tuple[Option, ...]) -> Option:
        asked[path] = assignment.get(path, options[0])
        return asked[path]

    return choose


def _choices(model: type[BaseModel], known: Mapping[Path, Any]) -> Iterator[tuple[Path, tuple[Option, ...]]]:
    """Yields every choice; some are there only behind an option of another."""
    found = dict[Path, tuple[Option, ...]]()
    behind = list[dict[Path, Option]]([{}])
    while behind:
        assignment = behind.pop(0)

        def choose(
            path: Path, options: tuple[Option, ...], fixed: Mapping[Path, Option] = assignment
        ) -> Option:
            if path not in found:
                found[path] = options
                behind.extend({**fixed, path: option} for option in options[1:])
            return fixed.get(path, options[0])

        _build(model, (), known, choose)
    yield from found.items()


def _build(kind: Any, path: Path, known: Mapping[Path, Any], choose: Choose) -> Any:
    """Returns a value of a type: a mark, or a model of them."""
    if path in known:
        return known[path]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _build(arguments[0], path, known, choose)
    if origin in (Union, types.UnionType):
        return _of_union(arguments, path, known, choose)
    if origin is Literal:
        return choose(path, arguments) if len(arguments) > 1 else arguments[0]
    if origin in (list, tuple):
        given = (FIRST, SECOND) if choose(path, (True, False)) else ()
        return origin(_build(arguments[0], (*path, item), known, _alike(choose)) for item in given)
    if origin is dict:
        return {text(path): text(path)} if choose(path, (True, False)) else {}
    if kind is bool:
        return choose(path, (True, False))
    if kind is int:
        return Number((path,))
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        parts = {
            name: _build(field.annotation, (*path, key_of(name)), known, choose)
            for name, field in kind.model_fields.items()
        }
        return kind.model_construct(**parts)
    if kind is not str:
        raise TypeError(f"{'.'.join(path)} is of type {kind}, which no mark stands for")
    return text(path)


def _alike(choose: Choose) -> Choose:
    """Returns a choice that is the same for both items of a list."""
    return lambda path, options: choose(tuple(FIRST if key == SECOND else key for key in path), options)


def _of_union(kinds: tuple[Any, ...], path: Path, known: Mapping[Path, Any], choose: Choose) -> Any:
    given = tuple(kind for kind in kinds if kind is not type(None))
    if len(given) < len(kinds) and not choose(path, (True, False)):
        return None
    if len(given) == 1:
        if get_origin(given[0]) in (list, tuple, dict):
            raise TypeError(f"{'.'.join(path)} may be null and empty")
        return _build(given[0], path, known, choose)
    if set(given) == {int, float}:
        return Number((path,), form="%v")
    by_name = {get_args(kind.model_fields["kind"].annotation)[0]: kind for kind in given}
    return _build(by_name[str(choose((*path, "kind"), tuple(by_name)))], path, known, choose)
