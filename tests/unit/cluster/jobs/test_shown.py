"""How jobs of a cluster are shown while they run."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tests.unit.cluster.jobs.conftest import Look
from trtspec.base.errors import UnavailableError
from trtspec.cluster.commands.build_on import Lines, table, words
from trtspec.cluster.jobs import JobState, JobStatus, Phase, plan_jobs


@pytest.fixture
def standing(pair_recipe: Path, wanted: Look) -> JobStatus:
    """Three jobs: one runs and has said something, one waits, one is not submitted."""
    made = JobStatus(plan_jobs([wanted(pair_recipe)], "s3://engines", shares_files=True))
    target, draft, _ = made.jobs
    made.has(target, "7")
    made.has(draft, "8")
    made.learn(
        {
            "7": JobState(Phase.RUNS, node="n1"),
            "8": JobState(Phase.WAITS, "jobs of higher priority come first"),
        }
    )
    log = made.jobs[target].log
    log.parent.mkdir(parents=True)
    log.write_text("convert target ...\nconvert target: 40 % after 20 s\x1b[2J\n\n")
    return made


def test_a_table_has_each_job_with_what_it_does(standing: JobStatus) -> None:
    console = Console(width=120, record=True, file=StringIO())
    console.print(table(standing, "Slurm: its controller does not answer; asking again"))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    assert lines[:3] == [
        "pair target: build  7  runs on n1: convert target: 40 % after 20 s\\x1b[2J",
        "pair draft: build   8  waits: jobs of higher priority come first",
        "pair pair              waits: is not submitted yet",
    ]
    assert "does not answer" in " ".join(lines[3:])


def test_lines_say_where_it_stands_when_nothing_changes(
    standing: JobStatus, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    shown = Lines(standing, lambda: now[0])
    for now[0] in (100.0, 299.0, 301.0, 400.0, 602.0):
        shown.looked()
    shown.unanswered(UnavailableError("Slurm", "its controller does not answer"))
    assert capsys.readouterr().err.splitlines() == [
        "1 runs, 2 waits",
        "1 runs, 2 waits",
        "Slurm: its controller does not answer; asking again",
    ]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (JobState(Phase.DONE, node="n1", restarts=2), "done on n1, restarted 2 times"),
        (JobState(Phase.FAILED, "its node failed", node="n1"), "failed on n1: its node failed"),
        (JobState(Phase.WAITS), "waits"),
    ],
)
def test_a_state_in_words(state: JobState, said: str) -> None:
    assert words(state) == said
