"""`trtspec build --on`: what a store lacks, built in the jobs of a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from trtspec.base.errors import JobError, StoreError, TrtspecError
from trtspec.cli.terminal.output import INTERRUPTED, out
from trtspec.cli.terminal.signals import ended_by_sigterm
from trtspec.cluster.commands.jobs import (
    following,
    print_failed,
    print_scripts,
    result_as_json,
    scripts_as_json,
)
from trtspec.cluster.commands.schedulers import Place, scheduler_of

if TYPE_CHECKING:
    from trtspec.cluster.jobs.scheduler import JobScheduler
    from trtspec.cluster.jobs.standing import JobStatus
    from trtspec.cluster.jobs.wanted import PendingBuild
    from trtspec.pipeline.store.store import Store


def build_on(
    cluster: str,
    recipes: Sequence[Path],
    flags: Mapping[str, str | None],
    url: str,
    *,
    place: Place,
    cancels: bool,
    dry_run: bool,
    json: bool,
) -> None:
    """Builds in jobs what the store at `url` lacks of these recipes, and shows them until the last is over.

    The jobs are left as they are on Ctrl-C and SIGTERM, which CI systems send, unless it `cancels` them.
    Raises JobError if one has failed.
    """
    from trtspec.cluster.jobs.following import follow
    from trtspec.cluster.jobs.planning import plan_jobs
    from trtspec.cluster.jobs.standing import JobStatus
    from trtspec.pipeline.store.store import Store

    scheduler, store = scheduler_of(cluster, recipes, url, place), Store(_plain(url))
    wanted = _look(recipes, flags, store, keeps=not dry_run)
    jobs = plan_jobs(wanted, store.address.url, shares_files=scheduler.shares_files)
    if dry_run:
        out.json(scripts_as_json(jobs, scheduler)) if json else print_scripts(jobs, scheduler)
        return
    for each in wanted:
        if each.entry:
            out.status(f"{_name(each)}: the store has it, {each.entry.digest[:12]}")
    standing = JobStatus(jobs)
    with ended_by_sigterm(), following(standing) as listener:
        try:
            if jobs:
                follow(standing, scheduler, store, listener)
        except (KeyboardInterrupt, SystemExit) as end:
            listener.close()
            _interrupted(standing, scheduler, cancels=cancels)
            if isinstance(end, SystemExit):
                raise
            raise typer.Exit(INTERRUPTED) from None
    pairs = {_name(each): store.find(each.pair.platform, each.pair.key) for each in wanted}
    if json:
        out.json(result_as_json(pairs, standing))
    else:
        for name, entry in pairs.items():
            if entry:
                out.result(f"{name}  {entry.digest}")
    if missing := [name for name, entry in pairs.items() if entry is None]:
        print_failed(standing)
        problem = f"the store has not got {', '.join(missing)}"
        raise JobError(scheduler.name, problem, "the same command goes on where they broke off")


def _look(
    recipes: Sequence[Path], flags: Mapping[str, str | None], store: Store, *, keeps: bool
) -> list[PendingBuild]:
    """Returns what is wanted of each recipe; with `keeps`, digests of large files are kept for the next call.

    Raises TrtspecError for two recipes that would build into one folder.
    """
    from trtspec.cluster.jobs.wanted import PendingBuild, look
    from trtspec.pipeline.build.plan import make_plan

    found, folders = list[PendingBuild](), dict[Path, Path]()
    for recipe in recipes:
        made = make_plan(recipe, flags, out.watch, to_run=False, store=store)
        other = folders.setdefault(made.output.absolute(), recipe)
        if other != recipe:
            problem = f"would be built into the folder of {other}: {made.output}"
            raise TrtspecError(recipe, problem, "give each recipe a name of its own, and leave out --output")
        found.append(look(store, made))
        if keeps:
            made.digests.save()
    return found


def _plain(url: str) -> str:
    """Returns the URL as every node can use it; raises StoreError for one with a secret in it."""
    from trtspec.pipeline.store.address import StoreAddress

    address = StoreAddress(url)
    if address.has_secret:
        problem = "has a secret, which whoever reads a job's script would see"
        raise StoreError(str(address), problem, "give credentials by variables or files of the environment")
    return str(Path(url).absolute()) if "://" not in url else url


def _interrupted(standing: JobStatus, scheduler: JobScheduler, *, cancels: bool) -> None:
    from trtspec.cluster.jobs.following import cancel

    if cancels:
        out.status(f"cancelled: {', '.join(cancel(standing, scheduler)) or 'no job'}")
        return
    if running := list(standing.running):
        out.status("the jobs go on; the same command shows them again")
        out.hint(f"to cancel them: {scheduler.how_to_cancel(running)}")


def _name(wanted: PendingBuild) -> str:
    return wanted.made.resolved.loaded.recipe.name
