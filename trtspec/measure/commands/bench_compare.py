"""`trtspec bench compare` compares two runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtspec.cli.terminal.options import JsonOption
from trtspec.cli.terminal.output import out
from trtspec.measure.bench.compare import compare
from trtspec.measure.bench.result import read
from trtspec.measure.commands.results import ShownComparison
from trtspec.measure.html.comparison import comparison_page
from trtspec.measure.html.document import write_report

EXAMPLES = (
    "trtspec bench compare bench/monday bench/tuesday",
    "trtspec bench compare bench/monday bench/tuesday --report compared.html",
)


def bench_compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="The folder of a run.", show_default=False)],
    second: Annotated[
        Path,
        typer.Argument(metavar="B", help="The folder of the run that is compared to it.", show_default=False),
    ],
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a report of both as one HTML file.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compare two runs of bench, load by load.

    The ratio is B's tokens per second over A's. With --rate it is A's mean time of a request over B's.
    Compare also names what else differs between the two runs.
    """
    comparison = compare(read(first), read(second))
    out.show(ShownComparison(comparison), as_json=json)
    if not comparison.rows:
        out.warning("the runs have no load in common, so there is nothing to compare")
    elif report:
        out.status(f"wrote {write_report(comparison_page(comparison), report)}")
    for difference in comparison.differences:
        out.warning(f"they differ: {difference}")
