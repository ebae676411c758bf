"""Pictures by matplotlib: of a forecast, by streams and acceptance; and of a schedule of K."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtspec.base.picture import COLOURS, style
from trtspec.forecast.schedule import DraftSchedule
from trtspec.pipeline.plan.speed import ACCEPTANCES, Speed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIZE = (10.0, 4.2)  # inches
_COLOURS = "viridis"


@style()
def draw(speed: Speed, title: str, file: Path) -> None:
    """Draws the forecast; the file's suffix is its format. Raises UnavailableError without matplotlib."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, layout="constrained")
    gains, lengths = figure.subplots(1, 2)
    colours = mpl.colormaps[_COLOURS].resampled(len(ACCEPTANCES) + 1)
    streams = [row.streams for row in speed.rows]
    for number, acceptance in enumerate(ACCEPTANCES):
        style = {"color": colours(number), "marker": "o", "markersize": 3, "label": f"{acceptance}"}
        gains.plot(streams, [row.best[number].speedup for row in speed.rows], **style)
        lengths.plot(streams, [row.best[number].length for row in speed.rows], **style)
    gains.axhline(1, color=COLOURS["ink"], linewidth=1.2)
    gains.set_ylabel("times the tokens a second without drafts")
    lengths.set_ylabel(f"best draft length, at most {speed.pair.longest}")
    lengths.set_ylim(0, speed.pair.longest + 0.5)
    for axes in (gains, lengths):
        _label(axes, speed)
    lines = gains.get_lines()[: len(ACCEPTANCES)][::-1]
    figure.legend(handles=lines, loc="outside right upper", title="a draft token\nis accepted with")
    figure.suptitle(title)
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


def _label(axes: Axes, speed: Speed) -> None:
    """Names the loads, and greys those that the KV caches do not hold."""
    streams = [row.streams for row in speed.rows]
    axes.set_xscale("log", base=2)
    axes.set_xticks(streams, [str(number) for number in streams])
    axes.set_xlabel(f"streams at once, sequences of {speed.context:,} tokens")
    if too_many := [row.streams for row in speed.rows if not row.fits]:
        axes.axvspan(too_many[0] / 2**0.5, streams[-1] * 2**0.25, color=COLOURS["rule"])
        words = " more than the KV cache holds"
        axes.text(too_many[0], axes.get_ylim()[0], words, rotation=90, va="bottom", fontsize="small")


@style()
def draw_schedule(found: DraftSchedule, title: str, file: Path) -> None:
    """Draws the gain of each K by streams with its interval, and above it the K of the schedule."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    lengths = sorted({length for level in found.levels for length in level.gains})
    colours = mpl.colormaps[_COLOURS].resampled(len(lengths) + 1)
    streams = [level.streams for level in found.levels]
    for number, length in enumerate(lengths):
        points = [(level.streams, gain) for level in found.levels if (gain := level.gains.get(length))]
        ends = [[one.value - one.low for _, one in points], [one.high - one.value for _, one in points]]
        at, values = [at for at, _ in points], [one.value for _, one in points]
        name, colour = f"K = {length}", colours(number)
        axes.errorbar(at, values, ends, label=name, color=colour, marker="o", markersize=4, capsize=3)
    axes.axhline(1, color=COLOURS["ink"], linewidth=1.2)
    axes.set_xscale("log", base=2)
    axes.set_xticks(streams, [str(number) for number in streams])
    axes.set_xlabel("requests at once; above: the K of the schedule")
    axes.set_ylabel("times the tokens a second without drafts")
    for row in found.rows:
        begin = max(row.first, streams[0])
        axes.axvline(begin, color=COLOURS["soft"], linewidth=1, linestyle=":")
        axes.annotate(row.cells[1], (begin, 1), (3, 3), ("data", "axes fraction"), "offset points")
    figure.legend(loc="outside right upper")
    figure.suptitle(title if found.is_measured else f"{title}: a forecast, NOT MEASURED")
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
