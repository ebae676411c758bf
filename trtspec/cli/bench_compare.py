"""`trtspec bench compare`: two runs beside each other."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from trtspec.terminal.options import JsonOption
from trtspec.terminal.output import out

EXAMPLES = ("trtspec bench compare bench/monday bench/tuesday",)


def bench_compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="The folder of a run.", show_default=False)],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another, compared to it.", show_default=False)],
    json: JsonOption = False,
) -> None:
    """Compare two runs of bench, load by load.

    Tokens a second of B stand over those of A; what else differs between the two is said.
    """
    from trtspec.bench.compare import compare
    from trtspec.bench.result import read
    from trtspec.terminal import results

    comparison = compare(read(first), read(second))
    if json:
        out.json(asdict(comparison))
        return
    for name, result in (("A", comparison.first), ("B", comparison.second)):
        out.result(f"{name}: {result.server.software or result.server.api} at {result.server.url}")
        out.result(f"   {result.verdict.words}")
    if comparison.rows:
        out.table(results.compared(comparison), results.COMPARED)
    for difference in comparison.differences:
        out.warning(f"they differ in {difference}")
