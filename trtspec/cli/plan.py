"""`trtspec plan`: every value of a build with its origin, the expected speed, and the steps."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import trtspec
from trtspec.base.errors import UnavailableError
from trtspec.cli.terminal.options import BackendOption, JsonOption, OutputOption, RecipeArgument
from trtspec.cli.terminal.outlook import outlook_as_json, print_outlook, print_verdict
from trtspec.cli.terminal.output import out
from trtspec.cli.terminal.steps import PlannedSteps
from trtspec.deployment.deployment import rollout_file
from trtspec.deployment.rollout.steps import name_of, read_record
from trtspec.forecast.rules import MeasuredRun
from trtspec.pipeline.build.plan import BuildPlan
from trtspec.pipeline.plan.outlook import PlanOutlook, look_ahead
from trtspec.pipeline.plan.picture import draw
from trtspec.serving.executors.torch import host

SUFFIXES = (".svg", ".png", ".pdf")
EXAMPLES = (
    "trtspec plan recipe.yaml",
    "trtspec plan recipe.yaml --measured results/ --picture plan.svg",
    "trtspec plan recipe.yaml --commands",
    "trtspec plan recipe.yaml --fleet --rate 1000 --workload synthetic:input=512,output=256,spread=0.5",
)


def _drawable(file: Path | None) -> Path | None:
    if file and file.suffix not in SUFFIXES:
        raise typer.BadParameter(f"{file}: its name must end with {', '.join(SUFFIXES)}")
    return file


@dataclass(frozen=True, slots=True)
class PlanCommandOptions:
    """The options of `trtspec plan`."""

    recipe: RecipeArgument
    commands: Annotated[bool, typer.Option("--commands", help="Print only the command lines.")] = False
    measured: Annotated[
        Path | None,
        typer.Option(
            "--measured", metavar="RESULT", help="Use this result of trtspec bench: its file or folder."
        ),
    ] = None
    context: Annotated[
        int | None,
        typer.Option("--context", min=1, metavar="TOKENS", help="The mean number of tokens of a sequence."),
    ] = None
    picture: Annotated[
        Path | None,
        typer.Option(
            "--picture",
            metavar="FILE",
            help="Draw the expected speed into this file: .svg, .png or .pdf.",
            callback=_drawable,
        ),
    ] = None
    fleet: Annotated[
        bool, typer.Option("--fleet", help="Say how many replicas a load needs, and what they cost.")
    ] = False
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate",
            min=0.001,
            max=10**6,
            metavar="X",
            help="With --fleet: requests per second.",
            show_default=False,
        ),
    ] = None
    workload: Annotated[
        str | None,
        typer.Option(
            "--workload",
            metavar="FILE",
            help="With --fleet: take lengths from prompts, a trace, or synthetic:input=512,output=128.",
        ),
    ] = None
    store: Annotated[
        str | None,
        typer.Option(
            "--store", metavar="URL", help="With --fleet: the store that replicas pull their engines from."
        ),
    ] = None
    output: OutputOption = None
    backend: BackendOption = None
    json: JsonOption = False


def plan(options: PlanCommandOptions) -> None:
    """Show a build's values, its steps and what to expect."""
    if options.commands and options.json:
        raise typer.BadParameter("the steps of --json have them", param_hint="--commands")
    made = trtspec.plan(options.recipe, output=options.output, backend=options.backend, progress=out.watch)
    for note in made.notes:
        out.warning(note.words)
    if options.fleet:
        # The wing of fleets comes with the option.
        from trtspec.capacity.commands.plan_fleet import FleetOptions, plan_fleet

        of_fleet = FleetOptions(options.rate, options.workload, options.store, options.measured)
        out.show(plan_fleet(made, of_fleet), as_json=options.json)
        return
    if options.rate is not None or options.workload or options.store:
        raise typer.BadParameter("--rate, --workload and --store go with --fleet")
    if options.commands:
        for step in made.steps:
            out.result(shlex.join(step.command) if step.command else f"# {step.name}: {step.summary}")
        return
    _show(made, options)


def _show(made: BuildPlan, options: PlanCommandOptions) -> None:
    """Computes memory and speed, and prints the plan with both."""
    longest = made.resolved.target.options.max_seq_len
    if options.context and options.context > longest:
        raise typer.BadParameter(
            f"{options.context} is longer than a sequence may be: max_seq_len is {longest}"
        )
    known = _measured(options.measured, made.resolved.loaded.recipe.name)
    outlook = look_ahead(made.resolved, host.look(), options.context, known, _rollout(made.output))
    out.show(ShownPlan(made, outlook), as_json=options.json)
    if options.picture:
        _draw(made, outlook, options.picture)
    memory, on_cpu = outlook.memory, outlook.on_cpu
    if memory and memory.problem:
        out.warning(memory.problem)
    if on_cpu and on_cpu.problem:
        out.warning(f"{on_cpu.problem}: a smaller max_seq_len or more memory help")


def _measured(file: Path | None, recipe: str) -> MeasuredRun | None:
    # The wing of measurements comes with the option.
    from trtspec.measure.bench.result import measured_run, read

    if file is None:
        return None
    result = read(file)
    if result.model.recipe not in (None, recipe):
        out.warning(f"{file} was measured for the recipe {result.model.recipe}, but this one is {recipe}")
    return measured_run(result)


def _rollout(build: Path) -> str | None:
    """Returns the name of the roll-out's step; None if no roll-out was started."""
    found = read_record(rollout_file(build))
    return name_of(found.state) if found else None


@dataclass(frozen=True, slots=True)
class ShownPlan:
    """A plan, and what to expect of it."""

    made: BuildPlan
    outlook: PlanOutlook

    def tell(self) -> None:
        """Prints the verdict, and then its reasons."""
        print_verdict(self.made, self.outlook)
        out.result()
        hardware = self.made.resolved.loaded.recipe.hardware
        print_outlook(self.outlook, hardware.gpu, self.made.resolved.target.options.max_batch_size)
        out.result()
        rows = []
        for choice in self.made.resolved.choices:
            value = str(choice.value).lower() if isinstance(choice.value, bool) else choice.value
            rows.append((choice.key, value, choice.origin, choice.reason))
        out.table(rows, header=("value", "", "from", "because"))
        out.result()
        PlannedSteps(self.made).tell()

    def as_json(self) -> dict[str, Any]:
        models = self.made.facts.models
        return {
            "values": [asdict(choice) for choice in self.made.resolved.choices],
            **outlook_as_json(self.outlook),
            "not_read": {role: str(facts.not_read) for role, facts in models.items() if facts.not_read},
            **PlannedSteps(self.made).as_json(),
        }


def _draw(made: BuildPlan, outlook: PlanOutlook, file: Path) -> None:
    recipe = made.resolved.loaded.recipe
    if outlook.speed is None:
        raise UnavailableError("the picture", f"has nothing to show: {outlook.no_speed}")
    draw(outlook.speed, f"{recipe.name}: {recipe.hardware.count} x {recipe.hardware.gpu}", file)
    out.status(f"{file}: drawn")
