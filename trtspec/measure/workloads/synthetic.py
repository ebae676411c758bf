"""Makes prompts of any length from random words."""

from __future__ import annotations

import random
from dataclasses import dataclass

from trtspec.base.errors import MeasureError
from trtspec.measure.workloads.workload import Prompt, Workload

NAME = "synthetic"
_REPAIR = f"as in {NAME}:input=512,output=128,spread=0.2,prompts=64"
# Each word with its leading space is one token of the usual vocabularies.
_WORDS = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an "
    "they which one you were all her she there would their we him been has when who will no more if out "
    "so up said what its about than into them can only other time new some could these two may first then "
    "do any like my now over such our man me even most made after also did many off before must well back "
    "through years much where your way down should because long each just state those people too how "
    "little good world make very year still see own work men day get here old life both between being "
    "under three never know same last another while us might great against house place end home used "
    "again came around water right small hand"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of synthetic prompts."""

    input: int = 512
    """The mean tokens of a prompt, approximately."""
    output: int = 128
    """The mean tokens of an answer."""
    spread: float = 0.0
    """The standard deviation of both lengths divided by their means."""
    prompts: int = 64
    """The number of prompts."""


def read_shape(text: str) -> Shape:
    """Reads text such as `synthetic:input=512,output=128`; raises `MeasureError`."""
    values: dict[str, float] = {}
    for part in filter(None, text.removeprefix(NAME).removeprefix(":").split(",")):
        key, _, value = part.partition("=")
        if key not in Shape.__slots__:
            raise MeasureError(text, f"has no {key}; there are {', '.join(Shape.__slots__)}", _REPAIR)
        try:
            values[key] = float(value) if key == "spread" else int(value)
        except ValueError:
            raise MeasureError(text, f"{key} must be a number, not {value!r}", _REPAIR) from None
        least, most = (0, 5) if key == "spread" else (1, 10**7)
        if not least <= values[key] <= most:
            raise MeasureError(text, f"{key} must be {least} to {most:,}, not {value}", _REPAIR)
    return Shape(**values)  # type: ignore[arg-type]


def synthetic(shape: Shape, seed: int) -> Workload:
    """Returns prompts of random words; one seed gives the same prompts everywhere."""
    dice, words = random.Random(seed), _WORDS.split()  # noqa: S311

    def length(mean: int) -> int:
        return max(1, round(dice.gauss(mean, mean * shape.spread)))

    made = tuple(
        Prompt(
            str(number), (" ".join(dice.choices(words, k=length(shape.input))),), NAME, length(shape.output)
        )
        for number in range(1, shape.prompts + 1)
    )
    lengths = f"input={shape.input},output={shape.output},spread={shape.spread:g}"
    return Workload(NAME, f"{NAME}:{lengths},prompts={shape.prompts}", made)
