"""Keeps the loss of each training step in a file of JSON lines, and draws it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from io import StringIO
from itertools import pairwise
from pathlib import Path

from trtspec.base.files import write_atomically
from trtspec.base.picture import COLOURS, style

_BARS = "▁▂▃▄▅▆▇█"


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


@style()
def draw_losses(points: Sequence[LossPoint], file: Path) -> None:
    """Draws the losses as SVG: of each step, and their moving mean over about a 20th of all."""
    from matplotlib.figure import Figure

    losses = [point.loss for point in points]
    course = means(losses, max(2, min(20, len(losses) // 4)))
    axes = (figure := Figure(figsize=(8.0, 3.0), layout="constrained")).subplots()
    axes.plot([point.step for point in points], losses, color=COLOURS["rest"], linewidth=1)
    part = len(losses) / len(course)
    axes.plot([(place + 0.5) * part + 0.5 for place in range(len(course))], course, color=COLOURS["drafts"])
    axes.set_xlabel("step", loc="right")
    axes.set_title("loss, nats a token", loc="left")
    with StringIO() as text:
        figure.savefig(text, format="svg", metadata={"Date": None})
        write_atomically(file, text.getvalue())
