"""A build's report as Markdown, as GitHub shows it as the summary of a job."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trtspec.pipeline.report.report import BuildFailure, BuildReport


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
