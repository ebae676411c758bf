"""Makes a schedule of K of a forecast, and a recipe that follows it; draws both with matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtspec.backends.table import loads, runner_of
from trtspec.base.files import write_atomically
from trtspec.base.picture import COLOURS, style
from trtspec.forecast.outlook import within
from trtspec.forecast.schedule import DraftSchedule, LengthGain, LoadGains, schedule
from trtspec.forecast.speedup import speedup
from trtspec.pipeline.plan.speed import ACCEPTANCES, Speed
from trtspec.recipe.edit import edit, places
from trtspec.recipe.loader import LoadedRecipe

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCHEDULE, K, LONGEST = "speculation.schedule", "speculation.num_draft_tokens", "speculation.max_draft_len"
ACCEPTANCE = (0.6, 0.7, 0.8)
"""The acceptance that most pairs have, where it was not measured: the least, the middle, the most."""


def forecast_gain(speed: Speed, streams: int, length: int, acceptance: Sequence[float]) -> LengthGain:
    """Returns what a forecast expects of K at a load, with its range.

    `acceptance` is that of each position as far as it was measured, of which the last stands for later ones.
    The range has the forecast's own error, and without a measured acceptance that of `ACCEPTANCE` too.
    """
    costs = speed.pair.costs(speed.at(streams), length)
    known = [[*acceptance, *[acceptance[-1]] * length][:length]] if acceptance else []
    found = [speedup(each, costs) for each in known or [[share] * length for share in ACCEPTANCE]]
    error = speed.pair.error
    return LengthGain(found[len(found) // 2], within(found[0], error).low, within(found[-1], error).high)


def forecast_schedule(speed: Speed, places_: int, acceptance: Sequence[float]) -> DraftSchedule:
    """Returns the schedule that a forecast expects for up to so many requests at once."""
    levels = [
        LoadGains(
            row.streams,
            {n: forecast_gain(speed, row.streams, n, acceptance) for n in range(1, speed.pair.longest + 1)},
        )
        for row in speed.rows
        if row.streams <= places_
    ]
    low, _, high = ACCEPTANCE
    of = (
        "the acceptance that was measured"
        if acceptance
        else f"an acceptance of {low:.0%} to {high:.0%} a token"
    )
    origin = (
        f"a forecast for sequences of {speed.context:,} tokens and {of}; trtspec tune --schedule measures it"
    )
    return schedule(levels, is_measured=False, origin=origin)


def scheduled(loaded: LoadedRecipe, by_requests: Mapping[int, int]) -> dict[str, Any]:
    """Returns the changes of a recipe for a schedule, which no other key then bounds."""
    changes: dict[str, Any] = {SCHEDULE: dict(by_requests), K: None}
    largest, written = max(by_requests.values()), loaded.recipe.written(LONGEST)
    if written and (written < largest or not runner_of(loaded.recipe).k_by_request):
        changes[LONGEST] = largest
    return changes


def check_form(loaded: LoadedRecipe, longest: int) -> None:
    """Raises RecipeError where the recipe's engine would not follow a schedule, by its backend's rules."""
    text = loaded.path.read_text(encoding="utf-8-sig")
    loads(edit(text, scheduled(loaded, {1: longest, 2: 0}), loaded.path).encode(), loaded.path)


def write_schedule(found: DraftSchedule, loaded: LoadedRecipe, output: Path) -> Path | None:
    """Writes the recipe with a schedule, and its table as comments; returns None where drafts never gain.

    Raises RecipeError for a recipe that cannot be changed in this way, and where its engine has no schedule.
    """
    if found.is_off:
        return None
    is_elsewhere = output.parent.resolve() != loaded.path.parent.resolve()
    changes = {
        **(places(loaded, output.parent) if is_elsewhere else {}),
        **scheduled(loaded, found.by_requests),
    }
    text = found.written(edit(loaded.path.read_text(encoding="utf-8-sig"), changes, loaded.path))
    loads(text.encode(), output)
    write_atomically(output, text)
    return output


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
