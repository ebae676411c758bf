"""`trtspec build`: from a recipe to a build directory."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from trtspec.cli.options import (
    BackendOption,
    DryRunOption,
    JsonOption,
    OutputOption,
    RecipeArgument,
    StoreOption,
)
from trtspec.cli.output import out
from trtspec.cli.plan import print_steps, steps_as_json, watch
from trtspec.cli.report import ReportOption, reported
from trtspec.cli.store import say_pushed

if TYPE_CHECKING:
    from trtspec.build.plan import Plan
    from trtspec.run.step import Step

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
    """Convert, build both engines, write the repository."""
    from trtspec.build.plan import check_host, make_plan
    from trtspec.build.stored import push_build
    from trtspec.store.store import Store

    engines = Store(store) if store else None
    flags = {"output": output, "engine.backend": backend}
    if dry_run and report:
        raise typer.BadParameter("a dry run does nothing that could be reported", param_hint="--report")
    if dry_run:
        made = _checked(make_plan(recipe, flags, False, watch, container, engines))
        out.json(steps_as_json(made)) if json else print_steps(made)
        return
    with reported(recipe, report or []) as planned:
        if not engines:
            check_host(recipe, flags, container)
        made = _checked(make_plan(recipe, flags, True, watch, container, engines))
        planned(made)
        run_steps(made, made.steps, json)
        if engines:
            say_pushed(push_build(engines, made.own_steps, made.resolved, watch))


def _checked(made: Plan) -> Plan:
    if made.facts.host.container and made.resolved.release is None:
        raise typer.BadParameter("the torch backend builds without one", param_hint="--container")
    return made


def run_steps(made: Plan, steps: Sequence[Step], json: bool) -> None:
    """Runs what is not done of these steps of the plan, with progress, and prints what was made."""
    from trtspec.run.runner import run

    start = monotonic()
    ran = run(steps, made.output, made.digests, watch)
    print_costs(made, steps)
    if json:
        out.json({"output": str(made.output), "ran": ran, "seconds": round(monotonic() - start, 3)})
        return
    done = f"{len(ran)} of {len(steps)} steps run in {monotonic() - start:.1f} s" if ran else "nothing to do"
    out.status(f"{made.resolved.loaded.recipe.name}: {done}")
    out.result(str(made.output))


def print_costs(made: Plan, steps: Sequence[Step]) -> None:
    """What FP8 costs each model that was calibrated, whether in this run or before it."""
    from trtspec.checkpoint.calibrate.verdict import cost, worries
    from trtspec.checkpoint.calibration import read_calibration
    from trtspec.steps.calibrate import KIND

    for step in steps:
        role = step.role
        if step.kind != KIND or step.output is None:
            continue
        calibration = read_calibration(made.output / step.output)
        if sentence := cost(calibration):
            out.status(f"{role}: {sentence}")
        for worry in worries(calibration):
            out.warning(f"{role}: {worry}")
