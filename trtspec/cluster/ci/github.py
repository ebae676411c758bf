"""Writes the matrix of jobs for GitHub Actions, and `github.yml`, the workflow that builds it.

GitHub Docs list the contexts that a key may use: "Contexts reference", table "Context availability". An
action is named by its commit: a tag may be moved to other code. The job `matrix` assigns before it echoes, so
that the step fails if its command fails. Without `queue: max` at most one job waits, and the next one cancels
it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from importlib.resources import files
from typing import Any

from trtspec.cluster.ci.job import CiJob

FILE = ".github/workflows/engine-build.yml"


def matrix(jobs: Iterable[CiJob]) -> dict[str, Any]:
    """Returns the matrix of these jobs, for `strategy.matrix: ${{ fromJSON(...) }}`."""
    return {"include": [{**asdict(job), "runs_on": list(job.labels)} for job in jobs]}


def workflow() -> str:
    """Returns the text of `FILE`."""
    return files("trtspec.cluster.ci").joinpath("github.yml").read_text(encoding="utf-8")
