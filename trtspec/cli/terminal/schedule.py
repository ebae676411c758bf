"""Shows a schedule of K as a table and as JSON, for `tune` and `plan`."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trtspec.cli.terminal.output import out
from trtspec.forecast.schedule import DraftSchedule


@dataclass(frozen=True, slots=True)
class ShownSchedule:
    """A schedule, and the recipe that was written with it."""

    found: DraftSchedule
    written: Path | None
    why_not: str = "no K gains at any of these loads: serve it without drafts"
    """The reason why no recipe was written."""

    def tell(self) -> None:
        """Prints the table, the gain of each K at each load, and where the recipe is."""
        found = self.found
        out.sentence(found.origin if found.is_measured else f"NOT MEASURED: {found.origin}")
        out.table(
            (row.cells for row in found.rows), header=("requests", "K", "times the speed without drafts")
        )
        out.result()
        lengths = sorted({length for level in found.levels for length in level.gains})
        rows = [(level.streams, *(level.gains.get(n, "-") for n in lengths)) for level in found.levels]
        out.table(rows, header=("streams", *(f"K = {length}" for length in lengths)))
        for note in found.notes:
            out.warning(note)
        if self.written is None:
            out.status(f"no recipe is written: {self.why_not}")
            return
        out.status(f"written: {self.written}")
        out.next(shlex.join(["build", str(self.written)]))

    def as_json(self) -> dict[str, Any]:
        values = {"schedule": self.found.by_requests, "recipe": self.written and str(self.written)}
        return {**values, **asdict(self.found)}
