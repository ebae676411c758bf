"""`trtspec build`: from a recipe to a build directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trtspec.roles import Role
from trtspec.terminal.entries import print_pushed
from trtspec.terminal.options import (
    BackendOption,
    DryRunOption,
    JsonOption,
    OutputOption,
    RecipeArgument,
    ReportOption,
    StoreOption,
)
from trtspec.terminal.output import out
from trtspec.terminal.signals import ended_by_sigterm
from trtspec.terminal.steps import print_steps, run_steps, steps_as_json

if TYPE_CHECKING:
    from trtspec.build.plan import Plan
    from trtspec.run.digests import FileDigests

EXAMPLES = (
    "trtspec build recipe.yaml",
    "trtspec build recipe.yaml --container",
    "trtspec build recipe.yaml --store s3://engines/llama",
    "trtspec build recipe.yaml --dry-run",
)


def build(
    recipe: RecipeArgument,
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
    dry_run: DryRunOption = False,
    report: ReportOption = None,
    json: JsonOption = False,
) -> None:
    """Convert, build the engines, write the repository."""
    if until != "build" and not only:
        raise typer.BadParameter("it is for one engine: --only", param_hint="--until")
    if dry_run and report:
        raise typer.BadParameter("a dry run does nothing that could be reported", param_hint="--report")
    from trtspec.build.keys import check_key
    from trtspec.build.leases import leased_plan
    from trtspec.build.plan import check_host, make_plan
    from trtspec.build.stored import push_build
    from trtspec.ci.recorder import recorded
    from trtspec.recipe.loader import load
    from trtspec.steps.stages import Stage, up_to
    from trtspec.store.store import Store

    stage = Stage(until)
    engines = Store(store) if store else None
    flags = {"output": output, "engine.backend": backend}
    if only and only not in load(recipe).recipe.models:
        raise typer.BadParameter(f"{recipe} has no {only}", param_hint="--only")

    def planned(*, to_run: bool, digests: FileDigests | None = None) -> Plan:
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
            print_pushed(push_build(pushes, made.own_steps, made.resolved, watch, only))
