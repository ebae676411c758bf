"""`trtspec build`: from a recipe to a build directory, here or in the jobs of a cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trtspec.base.roles import Role
from trtspec.cli.terminal.entries import print_pushed
from trtspec.cli.terminal.options import (
    BackendOption,
    ContextOption,
    DryRunOption,
    JsonOption,
    NamespaceOption,
    OutputOption,
    ReportOption,
    StoreOption,
)
from trtspec.cli.terminal.output import out
from trtspec.cli.terminal.signals import ended_by_sigterm
from trtspec.cli.terminal.steps import print_steps, run_steps, steps_as_json

if TYPE_CHECKING:
    from trtspec.pipeline.build.plan import BuildPlan
    from trtspec.pipeline.run.digests import FileDigests

EXAMPLES = (
    "trtspec build recipe.yaml",
    "trtspec build recipe.yaml --container",
    "trtspec build recipe.yaml --store s3://engines/llama",
    "trtspec build recipe.yaml --dry-run",
    "trtspec build recipes/*.yaml --on slurm --store s3://engines",
    "trtspec build recipes/*.yaml --on kubernetes --store s3://engines",
)


def build(
    recipes: Annotated[
        list[Path],
        typer.Argument(
            metavar="RECIPE...", help="The recipe, a YAML file; several with --on.", show_default=False
        ),
    ],
    output: OutputOption = None,
    backend: BackendOption = None,
    container: Annotated[
        bool, typer.Option("--container", help="Build the engines in NVIDIA's image, with docker or podman.")
    ] = False,
    only: Annotated[
        Role | None, typer.Option("--only", help="Make this engine alone, and no model repository.")
    ] = None,
    until: Annotated[
        Literal["fetch", "calibrate", "convert", "build"],
        typer.Option("--until", help="With --only: the last stage; a later call goes on there."),
    ] = "build",
    store: StoreOption = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="Make only what stores know by this key, or fail."),
    ] = None,
    on: Annotated[
        Literal["slurm", "kubernetes"] | None,
        typer.Option("--on", help="Build what the store lacks in jobs of this cluster."),
    ] = None,
    on_interrupt: Annotated[
        Literal["leave", "cancel"],
        typer.Option("--on-interrupt", help="With --on: what becomes of the jobs on Ctrl-C."),
    ] = "leave",
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    dry_run: DryRunOption = False,
    report: ReportOption = None,
    json: JsonOption = False,
) -> None:
    """Convert, build the engines, write the repository.

    With --on there is a job for each engine that the store lacks, and one for each recipe that puts the whole
    into the store. A second call finds the jobs that wait or run.
    """
    _only_of_engines(
        recipes,
        backend,
        {"--on": on, "--store": store, "--container": container, "--only": only, "--key": key},
    )
    if (context or namespace) and on != "kubernetes":
        raise typer.BadParameter("it is for --on kubernetes", param_hint="--context, --namespace")
    if on:
        here = {"--container": container, "--only": only, "--until": until != "build", "--key": key}
        _refuse({**here, "--report": report})
        if not store:
            raise typer.BadParameter("jobs leave what they make in a store: --store URL", param_hint="--on")
        from trtspec.cluster.commands.build_on import build_on
        from trtspec.cluster.commands.schedulers import Place

        flags = {"output": output, "engine.backend": backend}
        cancels = on_interrupt == "cancel"
        place = Place(context, namespace)
        build_on(on, recipes, flags, store, place=place, cancels=cancels, dry_run=dry_run, json=json)
        return
    if on_interrupt == "cancel":
        raise typer.BadParameter("it is for the jobs of a cluster: --on", param_hint="--on-interrupt")
    if len(recipes) > 1:
        raise typer.BadParameter("one here; several are for the jobs of a cluster: --on")
    if until != "build" and not only:
        raise typer.BadParameter("it is for one engine: --only", param_hint="--until")
    if dry_run and report:
        raise typer.BadParameter("a dry run does nothing that could be reported", param_hint="--report")
    from trtspec.pipeline.build.keys import check_key
    from trtspec.pipeline.build.leases import leased_plan
    from trtspec.pipeline.build.plan import check_host, make_plan
    from trtspec.pipeline.build.stored import push_build
    from trtspec.pipeline.plan.choices import asked_backend
    from trtspec.pipeline.report.recorder import recorded
    from trtspec.pipeline.steps.stages import Stage, up_to
    from trtspec.pipeline.store.store import Store
    from trtspec.recipe.loader import load

    (recipe,), stage = recipes, Stage(until)
    engines = Store(store) if store else None
    flags = {"output": output, "engine.backend": backend}
    if only and only not in load(recipe, asked_backend(flags, os.environ)).recipe.engines:
        raise typer.BadParameter(f"{recipe} has no {only}", param_hint="--only")

    def planned(*, to_run: bool, digests: FileDigests | None = None) -> BuildPlan:
        if to_run and not engines:
            check_host(recipe, flags, container=container)
        made = make_plan(
            recipe,
            flags,
            out.watch,
            to_run=to_run,
            container=container,
            store=engines,
            only=only,
            digests=digests,
        )
        if container and made.resolved.release is None:
            raise typer.BadParameter("the torch backend builds without one", param_hint="--container")
        if key:
            check_key(made, only, key)
        return made

    if dry_run:
        made = planned(to_run=False)
        out.json(steps_as_json(made)) if json else print_steps(made)
        return
    pushes = engines if stage is Stage.BUILD else None
    with (
        ended_by_sigterm(),
        recorded(recipe, report or [], warn=out.warning) as record,
        leased_plan(pushes, planned, out.watch, out.warning) as (made, watch),
    ):
        record(made)
        if only and only in made.found:
            out.status(f"the store has the {only}: {made.found[only].entry.digest[:12]}")
            if json:
                out.json({"output": str(made.output), "ran": [], "seconds": 0.0})
            return
        run_steps(made, up_to(made.steps, stage), watch, json=json)
        if pushes:
            print_pushed(push_build(pushes, made, watch, only))


def _only_of_engines(recipes: list[Path], backend: str | None, options: dict[str, object]) -> None:
    """Raises RecipeError for an option that a recipe without engines has no use for."""
    from trtspec.cli.terminal.engines import require_engines

    for recipe in recipes if any(options.values()) else ():
        given = ", ".join(name for name, value in options.items() if value)
        require_engines(recipe, f"no engine to build, which {given} is for", backend)


def _refuse(options: dict[str, object]) -> None:
    for name, value in options.items():
        if value:
            raise typer.BadParameter("it is for a build on this machine", param_hint=name)
