"""`--report`: what a build did, in a file, however it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from trtspec.cli.errors import explain
from trtspec.cli.output import out

if TYPE_CHECKING:
    from trtspec.build.plan import Plan
    from trtspec.ci.report import BuildReport, Failure, Status, StepReport

_SUFFIXES = (".md", ".xml", ".json")


def _known(files: list[Path] | None) -> list[Path] | None:
    for file in files or ():
        if file.suffix not in _SUFFIXES:
            raise typer.BadParameter(f"{file}: its name must end with {', '.join(_SUFFIXES)}")
    return files


ReportOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Write what was done: .md for people, .xml (JUnit) or .json for machines; may be repeated.",
        callback=_known,
    ),
]


class _Build:
    """What a report is made of, as it becomes known."""

    def __init__(self, recipe: Path) -> None:
        self._recipe, self._start = recipe, monotonic()
        self._made: Plan | None = None
        self._before: set[str] = set()

    def planned(self, made: Plan) -> None:
        self._made, self._before = made, made.pending()

    def report(self, failure: Failure | None) -> BuildReport:
        from trtspec.ci.report import BuildReport

        seconds = round(monotonic() - self._start, 3)
        made = self._made
        if made is None:
            return BuildReport(self._recipe.stem, str(self._recipe), None, {}, (), seconds, failure)
        resolved, hardware = made.resolved, made.resolved.loaded.recipe.hardware
        made_for: dict[str, str | int] = {"backend": resolved.backend}
        if resolved.release:
            made_for |= {"release": resolved.release.version}
        made_for |= {"gpu": hardware.gpu, "count": hardware.count}
        name, output = resolved.loaded.recipe.name, str(made.output)
        steps = tuple(self._steps(made, failure))
        return BuildReport(name, str(self._recipe), output, made_for, steps, seconds, failure)

    def _steps(self, made: Plan, failure: Failure | None) -> Iterator[StepReport]:
        from trtspec.ci.report import StepReport
        from trtspec.run.records import read_records

        records, after = read_records(made.output), made.pending()
        for step in made.steps:
            status: Status = "run" if step.name in self._before else "kept"
            if step.name in after:
                status = "failed" if failure and step.name == failure.step else "not run"
            seconds = records[step.name].seconds if status == "run" else 0
            yield StepReport(step.name, step.summary, status, seconds)


@contextmanager
def reported(recipe: Path, files: Sequence[Path]) -> Iterator[Callable[[Plan], None]]:
    """Gives a function to be told the plan; writes the files at the end, also of a build that fails."""
    if not files:
        yield lambda made: None
        return
    build = _Build(recipe)
    try:
        yield build.planned
    except BaseException as error:
        try:
            _write(files, build.report(_failure(error)))
        except OSError as trouble:
            out.warning(f"no report: {trouble}")
        raise
    _write(files, build.report(None))


def _failure(error: BaseException) -> Failure:
    from trtspec.ci.report import Failure

    if isinstance(error, KeyboardInterrupt):
        return Failure("interrupted")
    known = explain(error)
    if known is None:
        return Failure(f"a defect of trtspec: {type(error).__name__}: {error}")
    return Failure(known.summary, known.repair, getattr(error, "step", None), known.lines)


def _write(files: Sequence[Path], report: BuildReport) -> None:
    from trtspec.atomic import write_atomically
    from trtspec.ci.junit import to_junit
    from trtspec.ci.markdown import to_markdown
    from trtspec.ci.report import to_json

    formats = dict(zip(_SUFFIXES, (to_markdown, to_junit, to_json), strict=True))
    for file in files:
        write_atomically(file, formats[file.suffix](report))
