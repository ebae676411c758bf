"""Makes a schedule of K of a forecast, and a recipe that follows a schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trtspec.backends.recipes import loads
from trtspec.backends.table import runner_of
from trtspec.base.atomic import write_atomically
from trtspec.forecast.schedule import DraftSchedule, LengthGain, LoadGains, schedule
from trtspec.forecast.speedup import speedup
from trtspec.pipeline.plan.speed import Speed
from trtspec.recipe.edit import edit
from trtspec.recipe.loader import LoadedRecipe
from trtspec.recipe.places import places

SCHEDULE, K, LONGEST = "speculation.schedule", "speculation.num_draft_tokens", "speculation.max_draft_len"
ACCEPTANCE = (0.6, 0.7, 0.8)
"""The acceptance that most pairs have, where it was not measured: the least, the middle, the most."""


def forecast_gain(speed: Speed, streams: int, length: int, acceptance: Sequence[float]) -> LengthGain:
    """Returns what a forecast expects of K at a load, with its range.

    `acceptance` is that of each position as far as it was measured, of which the last stands for later ones.
    Without one the range is that of `ACCEPTANCE`.
    """
    costs = speed.pair.costs(speed.at(streams), length)
    known = [[*acceptance, *[acceptance[-1]] * length][:length]] if acceptance else []
    found = [speedup(each, costs) for each in known or [[share] * length for share in ACCEPTANCE]]
    return LengthGain(found[len(found) // 2], found[0], found[-1])


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
