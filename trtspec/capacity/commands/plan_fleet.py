"""`trtspec plan --fleet` sizes the replicas for a load, with drafts and without, and prices them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from trtspec.base.errors import UnavailableError
from trtspec.capacity.commands.tables import fleet_as_json, print_fleet
from trtspec.capacity.demand import Demand, Lengths, lognormal
from trtspec.capacity.fleet import FleetArm, FleetRequirements, FleetResult, arm, checked, misses
from trtspec.capacity.measured import asked, measured
from trtspec.capacity.replicas import replica, weight
from trtspec.capacity.sizing import break_even
from trtspec.capacity.steady import LatencyBounds
from trtspec.capacity.tempo import Planned, Tempo
from trtspec.cli.terminal.output import out
from trtspec.measure.bench.result import read
from trtspec.measure.workloads.lengths import read_lengths
from trtspec.measure.workloads.synthetic import NAME, read_shape
from trtspec.pipeline.build.plan import BuildPlan
from trtspec.pipeline.plan.speed import pair_of, unforeseeable
from trtspec.pipeline.store.store import Store, find_entry
from trtspec.recipe.kubernetes import Autoscaling
from trtspec.serving.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """The options of the command line; they override the recipe."""

    rate: float | None
    workload: str | None
    store: str | None
    measured: Path | None
    seed: int


def show_fleet(made: BuildPlan, wanted: FleetOptions, *, as_json: bool) -> None:
    """Prints the fleet of a plan; raises UnavailableError if the speed of its engines is unknown."""
    fleet = _fleet(made, wanted)
    if as_json:
        out.json(fleet_as_json(fleet, made.resolved, wanted.seed))
    else:
        print_fleet(fleet, made.resolved, wanted.seed)
    for name, each in (("without drafts", fleet.plain), ("with drafts", fleet.drafts)):
        if each and each.problem:
            out.warning(f"{name}: no number of replicas is enough: {each.problem}")
        elif each and each.usual and misses(each, fleet.question.bounds):
            out.warning(f"{name}: in the simulation {each.usual.replicas:,} replicas still miss a bound")


def _fleet(made: BuildPlan, wanted: FleetOptions) -> FleetResult:
    question = _question(made, wanted)
    plain, drafts, tempo = _arms(made, wanted, question)
    even = None
    if plain is not None and tempo is not None:
        even = break_even(drafts.replica, tempo, plain.each, question.demand, question.bounds)
    with out.progress("simulating", unit="requests") as advance:
        plain = plain and checked(question, plain, wanted.seed, advance)
        drafts = checked(question, drafts, wanted.seed, advance)
    return FleetResult(question, plain, drafts, even)


def _question(made: BuildPlan, wanted: FleetOptions) -> FleetRequirements:
    recipe = made.resolved.loaded.recipe
    asked = recipe.fleet
    rate = wanted.rate or asked.requests_per_second
    if rate is None:
        problem = "has no fleet.requests_per_second"
        raise UnavailableError(made.resolved.loaded.path, problem, "add it, or give --rate")
    demand = Demand(rate, _lengths(made, wanted), asked.burstiness, asked.burst)
    longest, mean = made.resolved.target.options.max_seq_len, demand.lengths.input + demand.lengths.output
    if mean > longest:
        problem = f"requests have {mean:,.0f} tokens on average, but engine.max_seq_len is {longest:,}"
        raise UnavailableError("the fleet", problem, "ask for shorter ones, or build for longer ones")
    first, token = asked.time_to_first_token_ms, asked.inter_token_ms
    bounds = LatencyBounds(first and first / 1000, token and token / 1000)
    scaling = recipe.kubernetes.autoscaling or Autoscaling(max_replicas=1)
    price = asked.price_per_gpu_hour.get(recipe.hardware.gpu)
    return FleetRequirements(demand, bounds, asked.start, float(scaling.places), price)


def _lengths(made: BuildPlan, wanted: FleetOptions) -> Lengths:
    asked, loaded = made.resolved.loaded.recipe.fleet, made.resolved.loaded
    name = wanted.workload or asked.workload
    if name is None:
        return lognormal(asked.input_tokens, asked.output_tokens, asked.spread)
    if name.partition(":")[0] == NAME:
        shape = read_shape(name)
        return lognormal(shape.input, shape.output, shape.spread)
    file = Path(name) if wanted.workload else loaded.path.parent / name
    tokenizer: Tokenizer | None = None

    def count(text: str) -> int:
        nonlocal tokenizer
        tokenizer = tokenizer or Tokenizer.load(made.resolved.target.model.source.folder)
        return len(tokenizer.encode(text))

    return Lengths(tuple(read_lengths(file, count, asked.output_tokens)))


def _arms(
    made: BuildPlan, wanted: FleetOptions, question: FleetRequirements
) -> tuple[FleetArm | None, FleetArm, Callable[[float], Tempo] | None]:
    resolved = made.resolved
    plain, drafts, any_acceptance = _tempos(made, wanted, question)
    pulled = weight(resolved, has_drafts=True)
    if wanted.store is not None:  # It knows the exact size of a whole build.
        pulled = replace(pulled, whole=find_entry(Store(wanted.store), resolved.loaded.recipe.name).size)
    without = None
    if plain is not None:
        alone = replica(resolved, plain, has_drafts=False)
        without = arm(question, alone, weight(resolved, has_drafts=False))
    return without, arm(question, replica(resolved, drafts, has_drafts=True), pulled), any_acceptance


def _tempos(
    made: BuildPlan, wanted: FleetOptions, question: FleetRequirements
) -> tuple[Tempo | None, Tempo, Callable[[float], Tempo] | None]:
    """Returns the times without drafts and with them: measured if possible, else planned."""
    if wanted.measured:
        result = read(wanted.measured)
        recipe = made.resolved.loaded.recipe.name
        if result.model.recipe not in (None, recipe):
            told = f"was measured for the recipe {result.model.recipe}, but this one is {recipe}"
            out.warning(f"{wanted.measured} {told}")
        plain, with_drafts = measured(result, wanted.measured)
        _warn_of_others(wanted.measured, asked(result), question.demand.lengths)
        return plain, with_drafts, None
    if reason := unforeseeable(made.resolved):
        name = made.resolved.loaded.path
        repair = f"trtspec bench {name} --output results, then trtspec plan {name} --fleet --measured results"
        raise UnavailableError("the fleet", f"cannot be computed: {reason}", repair)
    pair = pair_of(made.resolved, made.resolved.target.options.max_draft_len)

    def tempo(acceptance: float) -> Tempo:
        return Planned(pair, [acceptance] * pair.longest, made.resolved.num_draft_tokens)

    acceptance = float(made.resolved.loaded.recipe.fleet.acceptance)
    return Planned(replace(pair, draft=None)), tempo(acceptance), tempo


def _warn_of_others(file: Path, seen: tuple[float, float], lengths: Lengths) -> None:
    """Warns if requests are more than twice as long as the measured ones, or less than half as long."""
    for name, was, now in zip(("prompts", "answers"), seen, (lengths.input, lengths.output), strict=True):
        if was and not 0.5 <= now / was <= 2:
            told = (
                f"{file} was measured with {name} of {was:,.0f} tokens on average, and these have {now:,.0f}"
            )
            out.warning(f"{told}: measure with such, or read the times of turns with care")
