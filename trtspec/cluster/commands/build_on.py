"""`trtspec build --on` builds what a store lacks in the jobs of a cluster, and shows them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import typer
from huggingface_hub.constants import HF_HUB_CACHE

import trtspec
from trtspec.backends.table import load
from trtspec.base.cache import cache_folder
from trtspec.base.errors import JobError, StoreError, TrtspecError
from trtspec.base.tail import last_bytes
from trtspec.cli.terminal.build_options import BuildCommandOptions
from trtspec.cli.terminal.output import INTERRUPTED, out, visible
from trtspec.cli.terminal.signals import ended_by_sigterm
from trtspec.cluster.jobs import JobScheduler, JobStatus, PendingBuild, cancel, follow, look, plan_jobs
from trtspec.cluster.slurm import SlurmScheduler
from trtspec.deployment.build import default_image
from trtspec.pipeline.store.files import StoreAddress
from trtspec.pipeline.store.store import Store
from trtspec.recipe.kubernetes import OwnClaim

if TYPE_CHECKING:
    from rich.table import Table

    from trtspec.base.errors import UnavailableError
    from trtspec.cluster.jobs import ClusterJob, JobState
    from trtspec.pipeline.store.store import Entry

_SILENCE_S = 300.0
_LINES = 8
_MOST_BYTES = 8192
_WIDTH = 72


def build_on(options: BuildCommandOptions) -> None:
    """Builds in jobs what the store lacks, and shows the jobs until the last one ends.

    Ctrl-C and SIGTERM, which CI systems send, leave the jobs running unless the options cancel them. Raises
    JobError if a job has failed.
    """
    assert options.on
    assert options.store
    scheduler: JobScheduler
    if options.on == "kubernetes":
        scheduler = _kubernetes(options, options.store)
    else:
        caches = {"HF_HUB_CACHE": Path(HF_HUB_CACHE), "TRTSPEC_CACHE": cache_folder()}
        scheduler = SlurmScheduler(sys.executable, caches)
    store = trtspec.Store(_plain(options.store))
    wanted = _look(options, store)
    jobs = plan_jobs(wanted, store.address.url, shares_files=scheduler.shares_files)
    if options.dry_run:
        out.show(PlannedJobs(jobs, scheduler), as_json=options.json)
        return
    for each in wanted:
        if each.entry:
            out.status(f"{_name(each)}: the store has it, {each.entry.digest[:12]}")
    status = JobStatus(jobs)
    with ended_by_sigterm(), following(status) as listener:
        try:
            if jobs:
                follow(status, scheduler, store, listener)
        except (KeyboardInterrupt, SystemExit) as end:
            listener.close()
            _interrupted(status, scheduler, cancels=options.on_interrupt == "cancel")
            if isinstance(end, SystemExit):
                raise
            raise typer.Exit(INTERRUPTED) from None
    pairs = {_name(each): store.find(each.pair.platform, each.pair.key) for each in wanted}
    out.show(FinishedJobs(pairs, status), as_json=options.json)
    if missing := [name for name, entry in pairs.items() if entry is None]:
        print_failed(status)
        problem = f"the store lacks {', '.join(missing)}"
        raise JobError(scheduler.name, problem, "the same command continues them")


def _look(options: BuildCommandOptions, store: Store) -> list[PendingBuild]:
    """Returns the pending build of each recipe. Digests of large files are kept, but not in a dry run.

    Raises TrtspecError for two recipes that would build into one folder.
    """
    found, folders = list[PendingBuild](), dict[Path, Path]()
    for recipe in options.recipes:
        made = trtspec.plan(
            recipe, output=options.output, backend=options.backend, store=store, progress=out.watch
        )
        other = folders.setdefault(made.output.absolute(), recipe)
        if other != recipe:
            problem = f"would be built into the folder of {other}: {made.output}"
            raise TrtspecError(recipe, problem, "give each recipe a name of its own, and leave out --output")
        found.append(look(store, made))
        if not options.dry_run:
            made.digests.save()
    return found


def _plain(url: str) -> str:
    """Returns the URL in the form that every node can use; raises StoreError for one with a secret in it."""
    address = StoreAddress(url)
    if address.has_secret:
        problem = "contains a secret, which everybody who reads a job's script would see"
        raise StoreError(str(address), problem, "pass credentials by environment variables or files")
    return str(Path(url).absolute()) if "://" not in url else url


def _interrupted(status: JobStatus, scheduler: JobScheduler, *, cancels: bool) -> None:
    if cancels:
        out.status(f"cancelled: {', '.join(cancel(status, scheduler)) or 'no job'}")
        return
    if running := list(status.running):
        out.status("the jobs go on; the same command shows them again")
        out.hint(f"to cancel them: {scheduler.how_to_cancel(running)}")


def _name(wanted: PendingBuild) -> str:
    return wanted.made.resolved.loaded.recipe.name


def _kubernetes(options: BuildCommandOptions, url: str) -> JobScheduler:
    """Returns the cluster for builds for the store at `url`; raises RecipeError for files that pods would not
    find."""
    # The Kubernetes client comes with an extra, which a build on Slurm does not need.
    from trtspec.cluster.kubernetes.cluster import connect
    from trtspec.cluster.kubernetes.jobs import KubernetesJobs, check_visible

    loaded, ours = [load(recipe) for recipe in options.recipes], version("trtspec")
    for each in loaded:
        check_visible(each, url)
        if each.recipe.kubernetes.image is None:
            image = default_image(each.recipe, ours)
            out.warning(f"{each.path}: kubernetes.image is not written: every node must have {image} already")
    namespaces = {each.recipe.kubernetes.namespace for each in loaded}
    if len(namespaces) > 1 and options.namespace is None:
        problem = "the recipes name several namespaces, and all jobs run in one"
        raise typer.BadParameter(problem, param_hint="--namespace")
    namespace = options.namespace or namespaces.pop()
    shares_files = all(isinstance(each.recipe.kubernetes.build.volume, OwnClaim) for each in loaded)
    return KubernetesJobs(lambda: connect(options.context, namespace), ours, shares_files=shares_files)


@dataclass(frozen=True, slots=True)
class PlannedJobs:
    """The jobs that would be submitted, in order."""

    jobs: Sequence[ClusterJob]
    scheduler: JobScheduler

    def tell(self) -> None:
        titles = {job.name: job.title for job in self.jobs}
        for job in self.jobs:
            after = f", after {' and '.join(titles[name] for name in job.after)}" if job.after else ""
            out.result(f"# {job.title}{after}")
            out.result(self.scheduler.script(job))
        if not self.jobs:
            out.status("the store has it all")

    def as_json(self) -> dict[str, Any]:
        return {
            "jobs": [
                {
                    "name": job.name,
                    "title": job.title,
                    "after": list(job.after),
                    "gpus": job.gpus,
                    "command": ["trtspec", *job.arguments],
                    "script": self.scheduler.script(job),
                    "log": str(job.log),
                }
                for job in self.jobs
            ]
        }


@dataclass(frozen=True, slots=True)
class FinishedJobs:
    """The results of recipes and jobs."""

    pairs: Mapping[str, Entry | None]
    """The entry in the store of each recipe's pair."""
    status: JobStatus

    def tell(self) -> None:
        for name, entry in self.pairs.items():
            if entry:
                out.result(f"{name}  {entry.digest}")

    def as_json(self) -> dict[str, Any]:
        return {
            "pairs": {name: entry.digest if entry else None for name, entry in self.pairs.items()},
            "jobs": [_as_json(job, self.status) for job in self.status.jobs.values()],
        }


def _as_json(job: ClusterJob, status: JobStatus) -> dict[str, Any]:
    state = status.state(job.name)
    return {
        "name": job.name,
        "title": job.title,
        "id": status.ids.get(job.name),
        "state": state.phase.value,
        "reason": state.reason,
        "repair": state.repair,
        "node": state.node,
        "restarts": state.restarts,
        "log": str(job.log),
    }


def print_failed(status: JobStatus) -> None:
    """Prints, for each job that did not succeed, the reason, the repair and the end of its log."""
    for job in status.failed:
        state = status.state(job.name)
        if job.name not in status.ids or state.phase.value == "cancelled":
            continue
        for line in _last_lines(job, _LINES):
            out.status(f"  {line}")
        out.error(f"{job.title}: {state.reason}; its output is in {job.log}")
        if state.repair:
            out.hint(state.repair)


class Lines:
    """Prints one line for each change of a job, and one every five minutes if nothing changes."""

    def __init__(self, status: JobStatus, clock: Callable[[], float] = monotonic) -> None:
        self._status, self._clock, self._spoken = status, clock, clock()

    def submitted(self, job: ClusterJob, job_id: str) -> None:
        gpus = f" with {job.gpus} GPU{'s' * (job.gpus > 1)}" if job.gpus else ""
        self._say(f"{job.title}: job {job_id}{gpus}")

    def found(self, job: ClusterJob, job_id: str) -> None:
        self._say(f"{job.title}: job {job_id}, which an earlier call has submitted")

    def changed(self, job: ClusterJob, state: JobState) -> None:
        self._say(f"{job.title}: {words(state)}")

    def looked(self) -> None:
        if self._clock() - self._spoken >= _SILENCE_S:
            phases = [self._status.state(name).phase.value for name in self._status.jobs]
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

    def __init__(self, status: JobStatus) -> None:
        from rich.console import Console
        from rich.live import Live

        self._status, self._note = status, ""
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
        self._live.update(table(self._status, self._note), refresh=True)


@contextmanager
def following(status: JobStatus) -> Iterator[Lines | Drawn]:
    """Yields what shows jobs while they are followed: a table on a terminal, lines elsewhere and in CI."""
    shown = Drawn(status) if out.draws else Lines(status)
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


def table(status: JobStatus, note: str) -> Table:
    """Returns a row for each job: its title, its id and its state, with the last line of its log."""
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, pad_edge=False, caption=note or None, caption_justify="left")
    for width in (None, None, _WIDTH):
        table.add_column(no_wrap=width is None, max_width=width)
    for name, job in status.jobs.items():
        state = status.state(name)
        does = _last_lines(job, 1) if state.phase.value == "runs" else []
        shown = (job.title, status.ids.get(name, ""), ": ".join((words(state), *does)))
        table.add_row(*(Text(visible(cell)) for cell in shown))
    return table


def _last_lines(job: ClusterJob, most: int) -> list[str]:
    """Returns the end of a job's log; empty until the job has started."""
    try:
        said = last_bytes(job.log, _MOST_BYTES)
    except OSError:
        return []
    return [line for line in said.splitlines() if line.strip()][-most:]
