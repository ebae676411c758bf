"""Keeps the loss of each training step in a file of JSON lines, and draws it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from trtspec.base.atomic import write_atomically

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH, _HEIGHT, _MARGIN = 640, 240, 40


@dataclass(frozen=True, slots=True)
class LossPoint:
    """One step of the optimizer."""

    step: int
    loss: float
    """The mean of its batch, in nats per answer token."""
    learning_rate: float


class LossCurve:
    """The points so far. Each is written to the file at once, one JSON object per line."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.points: list[LossPoint] = []

    def restart(self, points: Iterable[LossPoint]) -> None:
        """Starts again after these points: the steps of a killed run after its checkpoint will be
        repeated."""
        self.points = list(points)
        write_atomically(self._file, "".join(map(_line, self.points)))

    def add(self, point: LossPoint) -> None:
        self.points.append(point)
        with self._file.open("a", encoding="utf-8") as stream:
            stream.write(_line(point))


def _line(point: LossPoint) -> str:
    return json.dumps(asdict(point)) + "\n"


def means(values: Sequence[float], count: int) -> list[float]:
    """Returns the means of `count` consecutive parts of the values; of fewer parts if there are fewer
    values."""
    count = min(count, len(values))
    edges = [len(values) * part // count for part in range(count + 1)] if count else []
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]


def as_line(points: Sequence[LossPoint], width: int = 40) -> str:
    """Returns the losses as a line of bars between the first and the last one, for a terminal."""
    values = means([point.loss for point in points], width)
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(_BARS) - 1) / (high - low or 1)
    bars = "".join(_BARS[round((value - low) * scale)] for value in values)
    return f"{values[0]:.3f} {bars} {values[-1]:.3f}"


def as_svg(points: Sequence[LossPoint]) -> str:
    """Returns a picture of the losses: of each step, and their moving mean over about a 20th of all."""
    losses = [point.loss for point in points]
    low, high = min(losses), max(losses)
    course = means(losses, max(2, min(20, len(losses) // 4)))
    right, bottom = _WIDTH - _MARGIN, _HEIGHT - _MARGIN

    def path(values: Sequence[float], offset: float) -> str:
        wide = (right - _MARGIN) / len(values)
        tall = (bottom - _MARGIN) / (high - low or 1)
        return " ".join(
            f"{_MARGIN + (number + offset) * wide:.1f},{bottom - (value - low) * tall:.1f}"
            for number, value in enumerate(values)
        )

    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"
     font-family="sans-serif" font-size="12">
<title>Loss of {len(losses)} steps, nats a token</title>
<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>
<path d="M{_MARGIN},{_MARGIN} V{bottom} H{right}" fill="none" stroke="#888"/>
<polyline points="{path(losses, 0.5)}" fill="none" stroke="#b6d7a8"/>
<polyline points="{path(course, 0.5)}" fill="none" stroke="#38761d" stroke-width="2"/>
<text x="{_MARGIN}" y="{_MARGIN - 12}">loss, nats a token</text>
<text x="{_MARGIN - 6}" y="{_MARGIN + 4}" text-anchor="end">{high:.2f}</text>
<text x="{_MARGIN - 6}" y="{bottom}" text-anchor="end">{low:.2f}</text>
<text x="{_MARGIN}" y="{bottom + 18}">step 1</text>
<text x="{right}" y="{bottom + 18}" text-anchor="end">{len(losses)}</text>
</svg>
"""
