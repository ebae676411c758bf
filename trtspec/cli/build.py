"""`trtspec build`: from a recipe to a build directory, here or in the jobs of a cluster."""

from __future__ import annotations

import typer

import trtspec
from trtspec.cli.terminal.build_options import BuildCommandOptions
from trtspec.cli.terminal.engines import require_engines
from trtspec.cli.terminal.output import out
from trtspec.cli.terminal.signals import ended_by_sigterm
from trtspec.cli.terminal.steps import PlannedSteps, RunSteps, tell_costs

EXAMPLES = (
    "trtspec build recipe.yaml",
    "trtspec build recipe.yaml --container",
    "trtspec build recipe.yaml --store s3://engines/llama",
    "trtspec build recipe.yaml --dry-run",
    "trtspec build recipes/*.yaml --on slurm --store s3://engines",
    "trtspec build recipes/*.yaml --on kubernetes --store s3://engines",
)


def build(options: BuildCommandOptions) -> None:
    """Convert, build the engines, write the repository.

    With --on, build makes a job for each engine that the store lacks. One more job for each recipe puts its
    build into the store. A second call finds the jobs that wait or run.
    """
    _check_usage(options)
    if options.on:
        # The wing of clusters comes with the option.
        from trtspec.cluster.commands.build_on import build_on

        build_on(options)
    elif options.dry_run:
        _show(options)
    else:
        _make(options)


def _show(options: BuildCommandOptions) -> None:
    """Prints the steps that a build would run."""
    (recipe,) = options.recipes
    made = trtspec.plan(
        recipe,
        output=options.output,
        backend=options.backend,
        container=options.container,
        store=trtspec.Store(options.store) if options.store else None,
        only=options.only,
        progress=out.watch,
    )
    if options.key:
        made.check_key(options.only, options.key)
    out.show(PlannedSteps(made), as_json=options.json)


def _make(options: BuildCommandOptions) -> None:
    """Builds here, and prints what was done."""
    (recipe,) = options.recipes
    with ended_by_sigterm():
        done = trtspec.build(
            recipe,
            output=options.output,
            backend=options.backend,
            container=options.container,
            only=options.only,
            until=options.until,
            store=trtspec.Store(options.store) if options.store else None,
            key=options.key,
            report=options.report or (),
            progress=out.watch,
            warn=out.warning,
        )
    if options.only and options.only in done.plan.found:
        out.status(f"the store has the {options.only}: {done.plan.found[options.only].entry.digest[:12]}")
        if options.json:
            out.json({"output": str(done.output), "ran": [], "seconds": 0.0})
        return
    tell_costs(done.plan, done.steps)
    out.show(RunSteps(done), as_json=options.json)
    if done.pushed is not None:
        from trtspec.cli.store import print_pushed

        print_pushed(done.pushed)


def _check_usage(options: BuildCommandOptions) -> None:
    """Refuses options that contradict each other.

    Raises RecipeError for options that have no effect if another engine's server loads the models.
    """
    engines = {
        "--on": options.on,
        "--store": options.store,
        "--container": options.container,
        "--only": options.only,
        "--key": options.key,
    }
    given = ", ".join(name for name, value in engines.items() if value)
    for recipe in options.recipes if given else ():
        require_engines(recipe, f"no engine to build, which {given} is for", options.backend)
    if (options.context or options.namespace) and options.on != "kubernetes":
        raise typer.BadParameter("it is for --on kubernetes", param_hint="--context, --namespace")
    if options.on:
        _check_cluster(options)
        return
    if options.on_interrupt == "cancel":
        raise typer.BadParameter("it is for the jobs of a cluster: --on", param_hint="--on-interrupt")
    if len(options.recipes) > 1:
        raise typer.BadParameter("one here; several are for the jobs of a cluster: --on")
    if options.until != "build" and not options.only:
        raise typer.BadParameter("it is for one engine: --only", param_hint="--until")
    if options.dry_run and options.report:
        raise typer.BadParameter("a dry run does nothing that could be reported", param_hint="--report")


def _check_cluster(options: BuildCommandOptions) -> None:
    """Refuses options of a build on this machine, and jobs without a store."""
    here = {
        "--container": options.container,
        "--only": options.only,
        "--until": options.until != "build",
        "--key": options.key,
        "--report": options.report,
    }
    for name, value in here.items():
        if value:
            raise typer.BadParameter("it is for a build on this machine", param_hint=name)
    if not options.store:
        raise typer.BadParameter("jobs leave what they make in a store: --store URL", param_hint="--on")
