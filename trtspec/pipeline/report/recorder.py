"""Records what a build does while it runs, and reports that however the build ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from trtspec.base.atomic import write_atomically
from trtspec.base.explanation import explain
from trtspec.pipeline.build.plan import BuildPlan
from trtspec.pipeline.report.report import (
    SUFFIXES,
    BuildFailure,
    BuildReport,
    Status,
    StepReport,
    to_json,
    to_junit,
    to_markdown,
)
from trtspec.pipeline.run.records import read_records

_FORMATS = dict(zip(SUFFIXES, (to_markdown, to_junit, to_json), strict=True))


class _Build:
    """Collects what a report is made of, as it becomes known."""

    def __init__(self, recipe: Path) -> None:
        self._recipe, self._start = recipe, monotonic()
        self._made: BuildPlan | None = None
        self._before: set[str] = set()

    def planned(self, made: BuildPlan) -> None:
        self._made, self._before = made, made.pending()

    def report(self, failure: BuildFailure | None) -> BuildReport:
        seconds = round(monotonic() - self._start, 3)
        made = self._made
        if made is None:
            return BuildReport(self._recipe.stem, str(self._recipe), None, {}, (), seconds, failure)
        resolved, hardware = made.resolved, made.resolved.loaded.recipe.hardware
        made_for: dict[str, str | int] = {"backend": resolved.backend}
        if resolved.release:
            made_for |= {"release": resolved.release.version}
        if resolved.launch:
            made_for |= {"release": resolved.launch.release}
        made_for |= {"gpu": hardware.gpu, "count": hardware.count}
        name, output = resolved.loaded.recipe.name, str(made.output)
        steps = tuple(self._steps(made, failure))
        return BuildReport(name, str(self._recipe), output, made_for, steps, seconds, failure)

    def _steps(self, made: BuildPlan, failure: BuildFailure | None) -> Iterator[StepReport]:
        records, after = read_records(made.output), made.pending()
        for step in made.steps:
            status: Status = "run" if step.name in self._before else "kept"
            if step.name in after:
                status = "failed" if failure and step.name == failure.step else "not run"
            seconds = records[step.name].seconds if status == "run" else 0
            yield StepReport(step.name, step.summary, status, seconds)


@contextmanager
def recorded(
    recipe: Path, files: Sequence[Path], warn: Callable[[str], None]
) -> Iterator[Callable[[BuildPlan], None]]:
    """Yields a function to call with the plan; writes the report to the files at the end of the block.

    A build that fails has a report too; if that cannot be written, `warn` is called and the build's own error
    is raised. Raises OSError if the report of any other build cannot be written.
    """
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
            warn(f"no report: {trouble}")
        raise
    _write(files, build.report(None))


def _failure(error: BaseException) -> BuildFailure:
    if isinstance(error, KeyboardInterrupt):
        return BuildFailure("interrupted")
    known = explain(error)
    if known is None:
        return BuildFailure(f"a defect of trtspec: {type(error).__name__}: {error}")
    return BuildFailure(known.summary, known.repair, getattr(error, "step", None), known.lines)


def _write(files: Sequence[Path], report: BuildReport) -> None:
    for file in files:
        write_atomically(file, _FORMATS[file.suffix](report))
