"""`trtspec plan`: every value of a build with its origin, the expected speed, and the steps."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import trtspec
from trtspec.base.errors import UnavailableError
from trtspec.base.units import gib
from trtspec.cli.terminal.options import BackendOption, JsonOption, OutputOption, RecipeArgument
from trtspec.cli.terminal.output import out
from trtspec.cli.terminal.schedule import ShownSchedule
from trtspec.cli.terminal.steps import PlannedSteps
from trtspec.deployment.deployment import rollout_file
from trtspec.deployment.rollout.steps import name_of, read_record
from trtspec.forecast.outlook import within
from trtspec.forecast.rules import MeasuredRun
from trtspec.pipeline.build.plan import BuildPlan
from trtspec.pipeline.plan.outlook import PlanOutlook, look_ahead
from trtspec.pipeline.plan.schedule import check_form, draw, forecast_schedule, write_schedule
from trtspec.pipeline.plan.speed import ACCEPTANCES, source
from trtspec.recipe.gpus import GPUS
from trtspec.serving.executors.torch import host

if TYPE_CHECKING:
    from trtspec.forecast.outlook import Best, ForecastRange
    from trtspec.forecast.rules import Judgement
    from trtspec.pipeline.plan.memory import Budget
    from trtspec.pipeline.plan.outlook import Alternative, Embedded
    from trtspec.pipeline.plan.speed import Speed

SUFFIXES = (".svg", ".png", ".pdf")
EXAMPLES = (
    "trtspec plan recipe.yaml",
    "trtspec plan recipe.yaml --measured results/ --picture plan.svg",
    "trtspec plan recipe.yaml --commands",
    "trtspec plan recipe.yaml --schedule scheduled.yaml",
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
    schedule: Annotated[
        Path | None,
        typer.Option(
            "--schedule",
            metavar="FILE",
            help="Write the recipe with the forecast's K by the number of requests into this file.",
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

        of_fleet = FleetOptions(options.rate, options.workload, options.measured)
        out.show(plan_fleet(made, of_fleet), as_json=options.json)
        return
    if options.rate is not None or options.workload:
        raise typer.BadParameter("--rate and --workload go with --fleet")
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
    if options.schedule:
        out.show(_scheduled(made, outlook, options.schedule, known), as_json=options.json)
        return
    out.show(ShownPlan(made, outlook), as_json=options.json)
    if options.picture:
        _draw(made, outlook, options.picture)
    memory, on_cpu = outlook.memory, outlook.on_cpu
    if memory and memory.problem:
        out.warning(memory.problem)
    if on_cpu and on_cpu.problem:
        out.warning(f"{on_cpu.problem}: a smaller max_seq_len or more memory help")


def _scheduled(made: BuildPlan, outlook: PlanOutlook, file: Path, known: MeasuredRun | None) -> ShownSchedule:
    """Writes the recipe with the forecast's schedule; raises UnavailableError without a forecast."""
    loaded, options = made.resolved.loaded, made.resolved.target.options
    if outlook.speed is None:
        raise UnavailableError("--schedule", f"there is no forecast: {outlook.no_speed}")
    check_form(loaded, outlook.speed.pair.longest)
    found = forecast_schedule(outlook.speed, options.max_batch_size, known.acceptance if known else ())
    return ShownSchedule(found, write_schedule(found, loaded, file))


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
        """Prints the verdict, and with --verbose its reasons, each value and each step."""
        print_verdict(self.made, self.outlook)
        if not out.verbose:
            out.sentence("-v shows the memory, the speed at each load, the rules, each value and each step")
            return
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


_USUAL = (0.6, 0.8)
"""The acceptance that most pairs have, of the forecast's own."""


def print_verdict(made: BuildPlan, outlook: PlanOutlook) -> None:
    """Prints each part of the verdict as a line."""
    name = made.resolved.loaded.recipe.name
    out.sentence(f"{name} {'; '.join(_fits(outlook))}")
    out.sentence(_expected(outlook.speed) if outlook.speed else f"no forecast: {outlook.no_speed}")
    out.sentence(outlook.advice.words)
    for names, why in _as_published(made):
        are, each = ("are", "each") if len(names) > 1 else ("is", "it")
        out.sentence(f"{' and '.join(names)} {are} computed from published sizes, since {each} {why}")
    if not any(_problems(outlook)):
        out.result(f"next: {shlex.join(_next(made))}")


def _as_published(made: BuildPlan) -> Iterator[tuple[list[str], str]]:
    """Yields each reason for which models could not be read, with the models."""
    unread = [(facts.name, facts.not_read) for facts in made.facts.models.values() if facts.not_read]
    for why, found in groupby(unread, lambda one: one[1].problem):
        yield [name for name, _ in found], why


def _problems(outlook: PlanOutlook) -> Iterator[str]:
    yield from (found.problem for found in (outlook.memory, outlook.on_cpu) if found and found.problem)


def _fits(outlook: PlanOutlook) -> Iterator[str]:
    """Yields whether the engines fit, with the memory that they take or the change that would help."""
    if problems := list(_problems(outlook)):
        yield f"does not fit: {'; '.join(problems)}"
        if outlook.alternatives:
            changes = outlook.alternatives[0].changes.items()
            yield f"it fits with {', '.join(f'{key}: {value}' for key, value in changes)}"
        return
    if memory := outlook.memory:
        yield (
            f"fits: weights and workspace take {gib(memory.weights + memory.workspace)} of the"
            f" {gib(memory.total)} of {memory.gpu}, and the rest holds {memory.requests} requests of"
            f" {memory.tokens_per_request:,} tokens"
        )
    if on_cpu := outlook.on_cpu:
        yield (
            f"fits: weights take {gib(on_cpu.weights)} of the {gib(on_cpu.free)} that are free here, and the"
            f" rest holds {on_cpu.requests} requests of {on_cpu.max_seq_len:,} tokens"
        )
    if not (memory or on_cpu):
        yield "takes what its server takes: trtspec does not know the layers"


def _expected(speed: Speed) -> str:
    """Returns the expected speed of one stream, without drafts and with them."""
    alone = speed.rows[0]
    least, most = (alone.best[ACCEPTANCES.index(share)].speedup for share in _USUAL)
    plain = alone.tokens_per_second
    return (
        f"expected of one stream: {plain:,.0f} tokens/s without drafts, {plain * least:,.0f} to"
        f" {plain * most:,.0f} with them ({least:.2f} to {most:.2f} times, where {_USUAL[0]:.0%} to"
        f" {_USUAL[1]:.0%} of the draft tokens are accepted), each ±{speed.pair.error:.0%}"
    )


def _next(made: BuildPlan) -> list[str]:
    """Returns the next command."""
    recipe, pending = str(made.resolved.loaded.path), made.pending()
    if not pending:
        return ["trtspec", "deploy", recipe]
    cannot = any(step.obstacle for step in made.steps if step.name in pending)
    in_container = cannot and made.resolved.release is not None
    return ["trtspec", "build", recipe, *(["--container"] if in_container else [])]


_SHOWN = 8
"""The number of alternatives that are printed."""


def print_outlook(outlook: PlanOutlook, gpu: str, places: int) -> None:
    """Prints what there is of an outlook, a table each.

    `gpu` is the recipe's, and `places` is the number of requests that its engines serve at once.
    """
    if outlook.memory:
        _print_memory(outlook.memory)
        out.result()
    if outlook.on_cpu:
        _print_embedded(outlook.on_cpu)
        out.result()
    if outlook.memory and outlook.memory.problem:
        _print_alternatives(outlook.alternatives)
        out.result()
    if outlook.speed:
        _print_speed(outlook.speed, gpu, places)
        out.result()
    out.table(_rules(outlook.advice.rules), header=("", "rules of thumb"))
    out.result()
    out.table(_rules(outlook.advice.checklist), header=("", "before production"))


def outlook_as_json(outlook: PlanOutlook) -> dict[str, Any]:
    on_cpu = outlook.on_cpu
    on_host = {**asdict(on_cpu), "problem": on_cpu.problem} if on_cpu else None
    memory: dict[str, Any] = {"memory": on_host}
    if outlook.memory:
        memory = {"memory": _memory_as_json(outlook.memory), "host_memory": on_host}
    return {
        **memory,
        "alternatives": _alternatives_as_json(outlook.alternatives),
        "forecast": _speed_as_json(outlook.speed) if outlook.speed else None,
        "no_forecast": outlook.no_speed,
        "advice": asdict(outlook.advice),
    }


def _print_memory(budget: Budget) -> None:
    """Prints a GPU's memory: what the engines take of it, and what the rest is for."""
    engines = budget.engines.items()
    rows = [
        ("weights", gib(budget.weights), ", ".join(f"{role} {gib(one.weights)}" for role, one in engines)),
        ("workspace", gib(budget.workspace), "an estimate: activations, logits, CUDA, TensorRT"),
        (
            "KV cache",
            gib(max(budget.left, 0)),
            f"{budget.tokens:,} tokens{' in each of the two' * (len(engines) > 1)}",
        ),
        (
            "a token",
            f"{budget.kv_per_token:,} B",
            ", ".join(f"{role} {engine.kv_per_token:,} B" for role, engine in engines),
        ),
        (
            "requests",
            str(budget.requests),
            f"of {budget.tokens_per_request:,} tokens, draft included;"
            f" max_batch_size is {budget.max_batch_size}",
        ),
    ]
    out.table(rows, header=("memory", gib(budget.total), f"of the fullest {budget.gpu}"))


def _memory_as_json(budget: Budget) -> dict[str, Any]:
    """Returns the budget in bytes, tokens and requests."""
    found = {name: getattr(budget, name) for name in ("left", "tokens", "requests", "problem")}
    values = asdict(budget)
    return {**values, **values.pop("engines"), **found}


def _print_embedded(embedded: Embedded) -> None:
    """Prints the memory of the engines on the CPU of this machine."""
    is_pair = len(embedded.roles) > 1
    found = f"{'all' if embedded.tokens == embedded.asked else 'of'} {embedded.asked:,}"
    of = "of both models" if is_pair else f"of the {embedded.roles[0]}"
    if embedded.shared:
        of += f", {gib(embedded.shared)} in common"
    rows = [
        ("weights", gib(embedded.weights), of),
        ("a token", f"{embedded.kv_per_token:,} B", "of KV cache, in both" if is_pair else "of KV cache"),
        (
            "KV cache",
            f"{embedded.tokens:,} tokens",
            f"{'in each of the two, ' if is_pair else ''}{found} that requests can ask for",
        ),
        ("threads", str(embedded.threads), f"{embedded.because}; fewer while others are busy on them"),
    ]
    out.table(rows, header=("memory", gib(embedded.free), "free on this machine, for its CPU"))


def _print_speed(speed: Speed, gpu: str, places: int) -> None:
    """Prints the speed without drafts, and the best draft length and its gain for each acceptance and
    load."""
    rows = [
        (
            row.streams,
            f"{row.tokens_per_second:,.0f}",
            *(_gain(*pair) for pair in zip(row.best, row.ranges, strict=True)),
            "never" if row.break_even is None else f"{row.break_even:.2f}",
        )
        for row in speed.rows
    ]
    out.result(f"expected of {gpu}, sequences of {speed.context:,} tokens: tokens/s without drafts, then")
    out.result(f"times that @ the best K up to {speed.pair.longest}, by how likely a draft token is accepted")
    out.table(rows, header=("streams", "tokens/s", *(f"at {value}" for value in ACCEPTANCES), "from"))
    for line in _speed_notes(speed, places):
        out.result(line)
    out.result(source(GPUS[gpu]))


def _gain(best: Best, possible: ForecastRange) -> str:
    """Returns the gain with its draft length, or the verdict where it is not a sure gain."""
    return {"yes": f"{best.speedup:.2f}@{best.length}", "no": "-", "measure": "measure"}[possible.verdict]


def _speed_notes(speed: Speed, places: int) -> Iterator[str]:
    """Yields the notes on the numbers."""
    first, last = speed.rows[0], speed.rows[-1]
    yield "from: the acceptance at which drafts begin to gain; -: they gain nothing; measure: it is near 1"
    gain, error = 1.4, speed.pair.error
    possible = within(gain, error)
    found = f"{possible.low:.2f} to {possible.high:.2f}"
    yield f"95 of 100 of these numbers are within {error:.0%}: a gain of {gain} stands for {found}"
    span = f"{first.plain.seconds * 1000:.1f} ms for {first.streams} stream"
    span += f", {last.plain.seconds * 1000:.1f} ms for {last.streams}"
    limits = [(row.streams, row.plain.bottleneck) for row in speed.rows]
    changes = [one for number, one in enumerate(limits) if not number or limits[number - 1][1] != one[1]]
    waits = ", ".join(f"{limit} from {streams} on" for streams, limit in changes)
    yield f"a step without drafts: {span}; it waits for {waits}"
    if speed.pair.draft is None:
        yield "look-ups cost nothing; if a look-up finds nothing, there is no draft"
    if full := [row.streams for row in speed.rows if not row.fits]:
        sequences = "a sequence" if full[0] == 1 else f"{full[0]} sequences"
        yield f"the KV cache does not hold {sequences} of that length"
    if places < last.streams:
        yield f"max_batch_size is {places}: further streams wait in the queue"


def _speed_as_json(speed: Speed) -> dict[str, Any]:
    """Returns the forecast; times are seconds, and a range is the lowest and the highest value."""
    error = speed.pair.error

    def possible(value: float) -> list[float]:
        return list(astuple(within(value, error)))

    return {
        "error": error,
        "context": speed.context,
        "max_draft_len": speed.pair.longest,
        "round_overhead": speed.pair.overhead_s,
        "streams": [
            {
                "streams": row.streams,
                "tokens_per_second": row.tokens_per_second,
                "tokens_per_second_range": possible(row.tokens_per_second),
                "step": row.plain.seconds,
                "step_range": possible(row.plain.seconds),
                "limit": row.plain.bottleneck,
                "draft_cost": row.draft_cost,
                "break_even": row.break_even,
                "fits": row.fits,
                "best": [
                    {
                        "acceptance": acceptance,
                        "num_draft_tokens": one.length,
                        "speedup": one.speedup,
                        "speedup_range": astuple(gain),
                        "verdict": gain.verdict,
                    }
                    for acceptance, one, gain in zip(ACCEPTANCES, row.best, row.ranges, strict=True)
                ],
            }
            for row in speed.rows
        ],
    }


def _print_alternatives(found: Sequence[Alternative]) -> None:
    """Prints what would fit, best first, with the change of the recipe."""
    if not found:
        out.sentence("nothing fits instead: neither FP8 nor shorter sequences, on up to 8 such GPUs")
        return
    rows = [
        (
            f"{one.count} GPU{'s' * (one.count > 1)}",
            gib(one.budget.weights),
            f"{one.budget.requests} of {one.budget.max_batch_size}",
            f"{one.budget.tokens_per_request:,}",
            ", ".join(f"{key}: {value}" for key, value in one.changes.items()),
        )
        for one in found[:_SHOWN]
    ]
    out.table(rows, header=("fits instead", "weights", "requests", "of tokens", "with this in the recipe"))


def _alternatives_as_json(found: Sequence[Alternative]) -> list[dict[str, Any]]:
    return [
        {
            "changes": one.changes,
            "count": one.count,
            "weights": one.budget.weights,
            "left": one.budget.left,
            "tokens": one.budget.tokens,
            "requests": one.budget.requests,
            "tokens_per_request": one.budget.tokens_per_request,
        }
        for one in found
    ]


def _rules(judgements: Sequence[Judgement]) -> Iterator[tuple[str, str]]:
    """Yields each verdict, and its rule with its number and what follows, where there are any."""
    for one in judgements:
        found = "; ".join(part for part in (one.number, one.then) if part)
        yield one.verdict, f"{one.rule}: {found}" if found else one.rule
