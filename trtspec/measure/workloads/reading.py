"""Reads a workload by its name on the command line: a file, or `synthetic:…`."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

from trtspec.base.errors import DatasetError
from trtspec.measure.workloads.formats import prompts
from trtspec.measure.workloads.rows import read_rows
from trtspec.measure.workloads.synthetic import NAME, read_shape, synthetic
from trtspec.measure.workloads.workload import Prompt, Workload


def read_workload(name: str, seed: int = 0, most_turns: int | None = None) -> Workload:
    """Returns the workload in an order in which every part of it has all categories in their shares.

    Raises `DatasetError` for a file that cannot be read or has no prompts, and `MeasureError` for a wrong
    `synthetic:…`.
    """
    if name.partition(":")[0] == NAME:
        return synthetic(read_shape(name), seed)
    path = Path(name)
    found = prompts(read_rows(path), most_turns)
    if not found:
        raise DatasetError(path, "has no prompts: no user speaks in its conversations")
    return Workload(path.stem, path.name, mixed(found, seed))


def mixed(found: tuple[Prompt, ...], seed: int) -> tuple[Prompt, ...]:
    """Returns the prompts with those of each category spread evenly over the whole."""
    dice = random.Random(seed)  # noqa: S311
    by_category: dict[str, list[Prompt]] = defaultdict(list)
    for prompt in found:
        by_category[prompt.category].append(prompt)
    placed: list[tuple[float, int, Prompt]] = []
    for number, same in enumerate(by_category.values()):
        dice.shuffle(same)
        begin = dice.random()
        placed += [((begin + place) / len(same), number, prompt) for place, prompt in enumerate(same)]
    return tuple(prompt for _, _, prompt in sorted(placed, key=lambda each: each[:2]))
