"""`trtspec build --on` builds what a store lacks in the jobs of a cluster."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import typer
from huggingface_hub.constants import HF_HUB_CACHE

import trtspec
from trtspec.backends.recipes import load
from trtspec.base.cache import cache_folder
from trtspec.base.errors import JobError, StoreError, TrtspecError
from trtspec.cli.build import BuildCommandOptions
from trtspec.cli.terminal.output import INTERRUPTED, out
from trtspec.cli.terminal.signals import ended_by_sigterm
from trtspec.cluster.commands.jobs import (
    following,
    print_failed,
    print_scripts,
    result_as_json,
    scripts_as_json,
)
from trtspec.cluster.jobs.following import JobStatus, cancel, follow
from trtspec.cluster.jobs.job import JobScheduler
from trtspec.cluster.jobs.planning import PendingBuild, look, plan_jobs
from trtspec.cluster.kubernetes.deriving import default_image
from trtspec.cluster.slurm.scheduler import SlurmScheduler
from trtspec.pipeline.store.address import StoreAddress
from trtspec.pipeline.store.store import Store
from trtspec.recipe.kubernetes import OwnClaim


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
        out.json(scripts_as_json(jobs, scheduler)) if options.json else print_scripts(jobs, scheduler)
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
            _interrupted(standing, scheduler, cancels=options.on_interrupt == "cancel")
            if isinstance(end, SystemExit):
                raise
            raise typer.Exit(INTERRUPTED) from None
    pairs = {_name(each): store.find(each.pair.platform, each.pair.key) for each in wanted}
    if options.json:
        out.json(result_as_json(pairs, standing))
    else:
        for name, entry in pairs.items():
            if entry:
                out.result(f"{name}  {entry.digest}")
    if missing := [name for name, entry in pairs.items() if entry is None]:
        print_failed(standing)
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


def _interrupted(standing: JobStatus, scheduler: JobScheduler, *, cancels: bool) -> None:
    if cancels:
        out.status(f"cancelled: {', '.join(cancel(standing, scheduler)) or 'no job'}")
        return
    if running := list(standing.running):
        out.status("the jobs go on; the same command shows them again")
        out.hint(f"to cancel them: {scheduler.how_to_cancel(running)}")


def _name(wanted: PendingBuild) -> str:
    return wanted.made.resolved.loaded.recipe.name


def _kubernetes(options: BuildCommandOptions, url: str) -> JobScheduler:
    """Returns the cluster for builds for the store at `url`; raises RecipeError for files that pods would not
    find."""
    # The Kubernetes client comes with an extra, which a build on Slurm does not need.
    from trtspec.cluster.kubernetes.connection import connect
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
