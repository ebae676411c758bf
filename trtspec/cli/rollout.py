"""`trtspec rollout`: drafts for the requests of a running deployment, a step at a time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import trtspec
from trtspec.base.errors import RefusedError
from trtspec.cli.terminal.engines import require_coordinator
from trtspec.cli.terminal.options import JsonOption, OutputOption, RecipeArgument, RunningUrlOption
from trtspec.cli.terminal.output import out
from trtspec.cli.top import metrics_url
from trtspec.deployment.build import NoBuildError
from trtspec.deployment.rollout import steps
from trtspec.deployment.rollout.bounds import BoundState, Check
from trtspec.deployment.rollout.rollout import DeployedRollout
from trtspec.deployment.rollout.steps import name_of
from trtspec.pipeline.plan.outlook import look_ahead
from trtspec.pipeline.plan.resolved import build_folder
from trtspec.serving.executors.torch.host import look

if TYPE_CHECKING:
    from trtspec.deployment.rollout.rollout import DeployedRollout, RolloutMove, RolloutView

HELP = "Give drafts to a running server's requests, a step at a time."
EXAMPLES = (
    "trtspec rollout plan recipe.yaml --measured results/",
    "trtspec rollout off recipe.yaml",
    "trtspec rollout next recipe.yaml    # shadow, then 5 %, 25 %, 50 %, all",
    "trtspec rollout status recipe.yaml || trtspec rollout back recipe.yaml",
)


def status(
    recipe: RecipeArgument,
    output: OutputOption = None,
    url: RunningUrlOption = None,
    json: JsonOption = False,
) -> None:
    """Show the step of the roll-out, and each bound with its measured value.

    The exit status is 1 if a bound is broken.
    """
    view = _running(recipe, output, url).view()
    out.show(ShownRollout(view, recipe), as_json=json)
    if view.verdict is BoundState.BROKEN:
        raise typer.Exit(1)


def next_(
    recipe: RecipeArgument,
    output: OutputOption = None,
    url: RunningUrlOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Take the next step even if a bound does not hold.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Go on to the next step, unless a bound is broken or too few requests were seen."""
    try:
        moved = _running(recipe, output, url).go_on(force=force)
    except RefusedError as error:
        if json:
            out.json({"moved": False, "followed": False, "refused": error.problem})
        raise
    _show_move(moved, "all requests have drafts already", as_json=json)


def back(
    recipe: RecipeArgument,
    output: OutputOption = None,
    url: RunningUrlOption = None,
    json: JsonOption = False,
) -> None:
    """Go back to the step before, whatever the bounds say."""
    _show_move(_running(recipe, output, url).go_back(), "no request has drafts already", as_json=json)


def off(
    recipe: RecipeArgument,
    output: OutputOption = None,
    url: RunningUrlOption = None,
    json: JsonOption = False,
) -> None:
    """Take the drafts from all requests that begin from now on."""
    _show_move(_running(recipe, output, url).go_off(), "", as_json=json)


def plan(
    recipe: RecipeArgument,
    measured: Annotated[
        Path | None,
        typer.Option(
            "--measured", metavar="RESULT", help="Use this result of trtspec bench: its file or folder."
        ),
    ] = None,
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """Show the steps with their bounds, and what to settle before the first.

    The exit status is 1 if trtspec bench has found that drafts do not pay.
    """
    from trtspec.measure.bench.result import measured_run, read

    require_coordinator(recipe)
    known = measured_run(read(measured)) if measured else None
    made = trtspec.plan(recipe, output=output, progress=out.watch)
    found = steps.plan_of(look_ahead(made.resolved, look(), None, known).advice)
    out.show(PlannedRollout(found, recipe), as_json=json)
    if known and known.decision == "off":
        raise typer.Exit(1)


COMMANDS = (plan, status, next_, back, off)


def _running(recipe: Path, output: str | None, url: str | None) -> DeployedRollout:
    loaded = require_coordinator(recipe)
    build = build_folder(loaded, {"output": output}, os.environ)
    if not build.is_dir():
        raise NoBuildError(build, f"trtspec build {recipe}")
    place = str(build.resolve())
    share = loaded.recipe.speculation.share
    return DeployedRollout(
        build,
        loaded.recipe.serving.triton_name,
        1.0 if share is None else float(share),
        metrics_url(url, lambda server: server.build == place),
    )


@dataclass(frozen=True, slots=True)
class PlannedRollout:
    """The steps of a roll-out that has not begun."""

    found: steps.RolloutPlan
    recipe: Path

    def tell(self) -> None:
        out.result(self.found.words)
        for header, judged in (("against", self.found.against), ("not known yet", self.found.unmeasured)):
            if judged:
                out.result()
                out.table([(each.rule, each.number, each.then) for each in judged], (header, "", ""))
        out.result()
        rows = [
            (each.step, each.drafts, f"{each.requests:,}", ", ".join([*each.bounds][1:]))
            for each in self.found.stages
        ]
        out.table(rows, ("step", "drafts for", "requests", "bounds"))
        out.result()
        bounds = {name: bound for each in self.found.stages[:-1] for name, bound in each.bounds.items()}
        out.table(bounds.items(), ("bound", "is"))
        out.hint(f"trtspec rollout off {self.recipe} begins; then next, back and status")

    def as_json(self) -> dict[str, Any]:
        return asdict(self.found)


@dataclass(frozen=True, slots=True)
class ShownRollout:
    """The step of a roll-out."""

    view: RolloutView
    recipe: Path

    def tell(self) -> None:
        state, since = self.view.record.state, self.view.record.since
        here = steps.name_of(state)
        out.result(f"{self.view.model} is at step {here}" + (f" since {since}" if since else ""))
        names = [step.name for step in steps.STEPS]
        ladder = names if here in names else [here]
        out.result("  ".join(f"[{name}]" if name == here else name for name in ladder))
        _print_checks(self.view.checks)
        if not self.view.server.goes_by(state):
            why = "cannot read its file" if self.view.server.is_malformed else "does not follow the file yet"
            out.warning(f"the server {why}; it keeps its last state")
        if self.view.verdict is BoundState.BROKEN:
            out.hint(f"trtspec rollout back {self.recipe}")
        elif self.view.verdict is BoundState.OPEN:
            needed = max(check.needed for check in self.view.checks)
            out.status(f"about {needed} more requests will decide")
        elif after := steps.after(state):
            out.hint(f"trtspec rollout next {self.recipe}    # {after.name}")

    def as_json(self) -> dict[str, Any]:
        return self.view.as_json()


@dataclass(frozen=True, slots=True)
class MovedRollout:
    """A move to another step; None if there was none to go to, for the reason `nothing`."""

    moved: RolloutMove | None
    nothing: str

    def tell(self) -> None:
        if moved := self.moved:
            steps_of = f"{name_of(moved.before)} -> {name_of(moved.after)}"
            out.status(f"{steps_of}, for requests that begin from now on")
        else:
            out.status(self.nothing)

    def as_json(self) -> dict[str, Any]:
        moved = self.moved
        names = {"from": name_of(moved.before), "to": name_of(moved.after)} if moved else {}
        return {"moved": bool(moved), **names, "followed": bool(moved and moved.is_followed)}


def _show_move(moved: RolloutMove | None, nothing: str, *, as_json: bool) -> None:
    out.show(MovedRollout(moved, nothing), as_json=as_json)
    if moved and not moved.is_followed:
        out.warning("the server has not followed yet; it does within a second if it runs and reads the file")


def _print_checks(checks: Sequence[Check]) -> None:
    """Prints a blank line, then each bound with its value and whether it holds. Prints nothing without
    bounds."""
    if checks:
        out.result()
        rows = [(check.name, check.bound, check.found, check.verdict.value) for check in checks]
        out.table(rows, header=("bound", "is", "found", ""))
