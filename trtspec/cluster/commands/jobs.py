"""Prints the jobs of a cluster as plain lines, as JSON, or as a table that is redrawn in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

from trtspec.base.tail import last_bytes
from trtspec.cli.terminal.output import out, visible

if TYPE_CHECKING:
    from rich.table import Table

    from trtspec.base.errors import UnavailableError
    from trtspec.cluster.jobs.following import JobStatus
    from trtspec.cluster.jobs.job import ClusterJob, JobScheduler, JobState
    from trtspec.pipeline.store.entry import Entry

_SILENCE_S = 300.0
_LINES = 8
_MOST_BYTES = 8192
_WIDTH = 72


def print_scripts(jobs: Sequence[ClusterJob], scheduler: JobScheduler) -> None:
    """Prints what would be submitted to the scheduler, in order."""
    titles = {job.name: job.title for job in jobs}
    for job in jobs:
        after = f", after {' and '.join(titles[name] for name in job.after)}" if job.after else ""
        out.result(f"# {job.title}{after}")
        out.result(scheduler.script(job))
    if not jobs:
        out.status("the store has it all")


def scripts_as_json(jobs: Sequence[ClusterJob], scheduler: JobScheduler) -> dict[str, Any]:
    return {
        "jobs": [
            {
                "name": job.name,
                "title": job.title,
                "after": list(job.after),
                "gpus": job.gpus,
                "command": ["trtspec", *job.arguments],
                "script": scheduler.script(job),
                "log": str(job.log),
            }
            for job in jobs
        ]
    }


def result_as_json(pairs: Mapping[str, Entry | None], standing: JobStatus) -> dict[str, Any]:
    """Returns the results of recipes and jobs; a pair has the digest of its entry in the store."""
    return {
        "pairs": {name: entry.digest if entry else None for name, entry in pairs.items()},
        "jobs": [_as_json(job, standing) for job in standing.jobs.values()],
    }


def _as_json(job: ClusterJob, standing: JobStatus) -> dict[str, Any]:
    state = standing.state(job.name)
    return {
        "name": job.name,
        "title": job.title,
        "id": standing.ids.get(job.name),
        "state": state.phase.value,
        "reason": state.reason,
        "repair": state.repair,
        "node": state.node,
        "restarts": state.restarts,
        "log": str(job.log),
    }


def print_failed(standing: JobStatus) -> None:
    """Prints, for each job that did not succeed, the reason, the repair and the end of its log."""
    for job in standing.failed:
        state = standing.state(job.name)
        if job.name not in standing.ids or state.phase.value == "cancelled":
            continue
        for line in _last_lines(job, _LINES):
            out.status(f"  {line}")
        out.error(f"{job.title}: {state.reason}; its output is in {job.log}")
        if state.repair:
            out.hint(state.repair)


class Lines:
    """Prints one line for each change of a job, and one every five minutes if nothing changes."""

    def __init__(self, standing: JobStatus, clock: Callable[[], float] = monotonic) -> None:
        self._standing, self._clock, self._spoken = standing, clock, clock()

    def submitted(self, job: ClusterJob, job_id: str) -> None:
        gpus = f" with {job.gpus} GPU{'s' * (job.gpus > 1)}" if job.gpus else ""
        self._say(f"{job.title}: job {job_id}{gpus}")

    def found(self, job: ClusterJob, job_id: str) -> None:
        self._say(f"{job.title}: job {job_id}, which an earlier call has submitted")

    def changed(self, job: ClusterJob, state: JobState) -> None:
        self._say(f"{job.title}: {words(state)}")

    def looked(self) -> None:
        if self._clock() - self._spoken >= _SILENCE_S:
            phases = [self._standing.state(name).phase.value for name in self._standing.jobs]
            counts = (f"{phases.count(phase)} {phase}" for phase in dict.fromkeys(phases))
            self._say(", ".join(counts))

    def unanswered(self, error: UnavailableError) -> None:
        self._say(f"{error}; asking again")

    def close(self) -> None:
        """Called when no more is shown, so that later output follows."""

    def _say(self, line: str) -> None:
        self._spoken = self._clock()
        out.status(line)


class Drawn:
    """Draws the jobs as a table on the terminal, each time over the previous one."""

    def __init__(self, standing: JobStatus) -> None:
        from rich.console import Console
        from rich.live import Live

        self._standing, self._note = standing, ""
        self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=False)
        self._live.start()

    def submitted(self, job: ClusterJob, job_id: str) -> None:
        self._draw()

    def found(self, job: ClusterJob, job_id: str) -> None:
        self._draw()

    def changed(self, job: ClusterJob, state: JobState) -> None: ...

    def looked(self) -> None:
        self._note = ""
        self._draw()

    def unanswered(self, error: UnavailableError) -> None:
        self._note = f"{error}; asking again"
        self._draw()

    def close(self) -> None:
        self._live.stop()

    def _draw(self) -> None:
        self._live.update(table(self._standing, self._note), refresh=True)


@contextmanager
def following(standing: JobStatus) -> Iterator[Lines | Drawn]:
    """Yields what shows jobs while they are followed: a table on a terminal, lines elsewhere and in CI."""
    shown = Drawn(standing) if out.draws else Lines(standing)
    try:
        yield shown
    finally:
        shown.close()


def words(state: JobState) -> str:
    """Returns the state of a job for people."""
    where = f" on {state.node}" if state.node else ""
    why = f": {state.reason}" if state.reason else ""
    again = f", restarted {state.restarts} time{'s' * (state.restarts > 1)}" if state.restarts else ""
    return f"{state.phase}{where}{again}{why}"


def table(standing: JobStatus, note: str) -> Table:
    """Returns a row for each job: its title, its id and its state, with the last line of its log."""
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, pad_edge=False, caption=note or None, caption_justify="left")
    for width in (None, None, _WIDTH):
        table.add_column(no_wrap=width is None, max_width=width)
    for name, job in standing.jobs.items():
        state = standing.state(name)
        does = _last_lines(job, 1) if state.phase.value == "runs" else []
        shown = (job.title, standing.ids.get(name, ""), ": ".join((words(state), *does)))
        table.add_row(*(Text(visible(cell)) for cell in shown))
    return table


def _last_lines(job: ClusterJob, most: int) -> list[str]:
    """Returns the end of a job's log; empty until the job has started."""
    try:
        said = last_bytes(job.log, _MOST_BYTES)
    except OSError:
        return []
    return [line for line in said.splitlines() if line.strip()][-most:]
