"""Records what a build does while it runs, and reports that however the build ends.

A report is JSON, Markdown or JUnit XML. GitHub shows the Markdown as the summary of a job. In the XML,
which Jenkins, GitLab and many others show, a step is a test. Its elements and attributes are those of the
schema of Jenkins' xUnit plugin (junit-10.xsd).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Literal
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from trtspec.base.explanation import explain
from trtspec.base.files import write_atomically
from trtspec.pipeline.build.plan import BuildPlan
from trtspec.pipeline.run.records import read_records

SCHEMA = 1
SUFFIXES = (".md", ".xml", ".json")
"""The suffixes of the files that a report can be written to."""

Status = Literal["run", "kept", "failed", "not run"]
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class StepReport:
    """The report on one step."""

    name: str
    summary: str
    status: Status
    seconds: float
    """The time that it took in this build; 0 for a step that was done before."""


@dataclass(frozen=True, slots=True)
class BuildFailure:
    """The reason for which a build ended early."""

    problem: str
    repair: str | None = None
    step: str | None = None
    """None if none was running."""
    lines: tuple[str, ...] = ()
    """The last lines that the step printed."""


@dataclass(frozen=True, slots=True)
class BuildReport:
    """The report on one build."""

    name: str
    recipe: str
    output: str | None
    """None if the build ended before there was a plan."""
    made_for: Mapping[str, str | int]
    """Empty where the build ended before there was a plan."""
    steps: tuple[StepReport, ...]
    """Empty where the build ended before there was a plan."""
    seconds: float
    failure: BuildFailure | None


def to_json(report: BuildReport) -> str:
    content = {"schema": SCHEMA, "ok": report.failure is None, **asdict(report)}
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def to_markdown(report: BuildReport) -> str:
    return "\n".join(_lines(report)) + "\n"


def _lines(report: BuildReport) -> Iterator[str]:
    verdict = "failed" if report.failure else "done"
    yield f"### {_plain(report.name)}: {verdict} in {report.seconds:.1f} s"
    yield ""
    if report.made_for:
        yield ", ".join(f"{key} {_plain(str(value))}" for key, value in report.made_for.items())
        yield ""
    if report.failure:
        yield from _failure(report.failure)
    if report.steps:
        yield "| step | | seconds |"
        yield "|---|---|---:|"
    for step in report.steps:
        seconds = f"{step.seconds:.1f}" if step.status == "run" else ""
        yield f"| {_plain(step.name)} | {step.status} | {seconds} |"


def _failure(failure: BuildFailure) -> Iterator[str]:
    place = f"{failure.step}: " if failure.step else ""
    yield f"**{_plain(place + failure.problem)}**"
    yield ""
    if failure.repair:
        yield _plain(failure.repair)
        yield ""
    if failure.lines:
        # A log may hold backticks, which must not end the block that shows it.
        ticks = max((len(run) for line in failure.lines for run in re.findall(r"`+", line)), default=0)
        fence = "`" * max(3, ticks + 1)
        yield from (f"{fence}text", *failure.lines, fence, "")


def _plain(text: str) -> str:
    """Returns the text on one line, with the characters escaped that have a meaning in Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", " ".join(text.split()))


def to_junit(report: BuildReport) -> str:
    """Returns the XML of a report; a failure outside the steps is an error of a test of its own, `build`."""
    failure, steps = report.failure, list(report.steps)
    outside = failure is not None and all(step.status != "failed" for step in steps)
    if outside or not steps:
        steps.append(StepReport("build", "", "failed" if outside else "run", 0))
    counts: dict[str, Any] = {
        "tests": str(len(steps)),
        "failures": str(sum(step.status == "failed" for step in steps) - outside),
        "errors": str(int(outside)),
        "skipped": str(sum(step.status == "not run" for step in steps)),
        "time": f"{report.seconds:.3f}",
    }
    root = Element("testsuites")
    suite = SubElement(root, "testsuite", name=_xml(f"trtspec {report.name}"), **counts)
    for step in steps:
        case = SubElement(suite, "testcase", name=_xml(step.name), classname=_xml(report.name))
        case.set("time", f"{step.seconds:.3f}")
        if step.status == "not run":
            SubElement(case, "skipped", message="the build ended before it")
        if step.status == "failed" and failure:
            wrong = SubElement(case, "error" if outside else "failure", message=_xml(failure.problem))
            wrong.text = _xml("\n".join(filter(None, (*failure.lines, failure.repair))))
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _xml(text: str) -> str:
    """Returns the text with U+FFFD for what XML cannot hold, such as the escape of a colour."""
    return _NOT_XML.sub("\ufffd", text)


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
            _write(files, build.report(_failed(error)))
        except OSError as trouble:
            warn(f"no report: {trouble}")
        raise
    _write(files, build.report(None))


def _failed(error: BaseException) -> BuildFailure:
    if isinstance(error, KeyboardInterrupt):
        return BuildFailure("interrupted")
    known = explain(error)
    if known is None:
        return BuildFailure(f"a defect of trtspec: {type(error).__name__}: {error}")
    return BuildFailure(known.summary, known.repair, getattr(error, "step", None), known.lines)


def _write(files: Sequence[Path], report: BuildReport) -> None:
    for file in files:
        write_atomically(file, _FORMATS[file.suffix](report))
