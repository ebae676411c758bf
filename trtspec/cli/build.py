"""`trtspec build`: from a recipe to a build directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

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
from trtspec.terminal.steps import print_steps, run_steps, steps_as_json

if TYPE_CHECKING:
    from trtspec.build.plan import Plan

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
        bool, typer.Option("--container", help="Build the engines in NVIDIA's image, with docker.")
    ] = False,
    store: StoreOption = None,
    dry_run: DryRunOption = False,
    report: ReportOption = None,
    json: JsonOption = False,
) -> None:
    """Convert, build the engines, write the repository."""
    from trtspec.build.plan import check_host, make_plan
    from trtspec.build.stored import push_build
    from trtspec.ci.recorder import recorded
    from trtspec.store.store import Store

    engines = Store(store) if store else None
    flags = {"output": output, "engine.backend": backend}

    def planned(*, to_run: bool) -> Plan:
        made = make_plan(recipe, flags, out.watch, to_run=to_run, container=container, store=engines)
        if container and made.resolved.release is None:
            raise typer.BadParameter("the torch backend builds without one", param_hint="--container")
        return made

    if dry_run and report:
        raise typer.BadParameter("a dry run does nothing that could be reported", param_hint="--report")
    if dry_run:
        made = planned(to_run=False)
        out.json(steps_as_json(made)) if json else print_steps(made)
        return
    with recorded(recipe, report or [], warn=out.warning) as record:
        if not engines:
            check_host(recipe, flags, container=container)
        made = planned(to_run=True)
        record(made)
        run_steps(made, made.steps, json=json)
        if engines:
            print_pushed(push_build(engines, made.own_steps, made.resolved, out.watch))
