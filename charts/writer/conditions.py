"""Conditions: which choices tell the samples that have a thing from those that have it not."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

from charts.writer.marks import Path
from charts.writer.samples import Option, Samples


@dataclass(frozen=True, slots=True)
class Literal:
    """One choice, and whether it was this one: `mask` has the samples for which that is true."""

    path: Path
    option: Option
    is_so: bool
    mask: int


class Conditions:
    """Conditions on the choices of samples; sets of samples are the bits of numbers."""

    def __init__(self, samples: Samples[Any]) -> None:
        self._samples = samples
        self.all = (1 << len(samples.values)) - 1

    @cached_property
    def choices(self) -> dict[Path, int]:
        """The samples that have each choice; one of a section that is switched off is not there."""
        return {path: self._samples.mask(path) for path in self._samples.choices}

    @cached_property
    def _literals(self) -> list[Literal]:
        found = []
        for path, options in self._samples.choices.items():
            for option in options if str in map(type, options) else (True,):
                mask = self._samples.mask(path, option)
                found.append(Literal(path, option, True, mask))
                found.append(Literal(path, option, False, self.all & ~mask))
        return found

    def telling(self, wanted: int, among: int) -> tuple[str, tuple[Literal, ...]] | None:
        """Returns "and" or "or", and the fewest literals, that hold for `wanted` among some samples.

        None where every sample is wanted. A thing that hangs on more than three choices is a ValueError.
        """
        if wanted == among:
            return None
        wide = [one for one in self._literals if wanted & ~one.mask == 0 and one.mask & among != among]
        narrow = [one for one in self._literals if one.mask & among & ~wanted == 0 and one.mask & among]
        for count in (1, 2, 3):
            for some in combinations(wide, count):
                mask = among
                for one in some:
                    mask &= one.mask
                if mask == wanted:
                    return "and", some
            for some in combinations(narrow, count):
                mask = 0
                for one in some:
                    mask |= one.mask & among
                if mask == wanted:
                    return "or", some
        raise ValueError("hangs on more choices than a condition has")

    def filled(self, path: Path) -> int:
        """Returns the samples in which a list or dict has something."""
        return self._samples.mask(path, True)

    def guards(self, path: Path, among: int) -> list[Path]:
        """Returns the sections that may be switched off around a value, from the outermost in."""
        outer = [path[:end] for end in range(1, len(path)) if path[:end] in self.choices]
        return [guard for guard in outer if among & ~self._samples.mask(guard, True)]

    def passed_on(self, found: dict[str, int]) -> Path | None:
        """Returns the choice whose option is the very thing that is found in each sample, if there is one."""
        for path in self.choices:
            if all(mask & ~self._samples.mask(path, _option(text)) == 0 for text, mask in found.items()):
                return path
        return None


def _option(text: str) -> Option:
    return {"true": True, "false": False}.get(text, text)
