"""`trtspec plan --fleet` sizes the replicas for a load, with drafts and without, and prices them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from trtspec.base.errors import MeasureError, UnavailableError
from trtspec.capacity.commands.tables import fleet_as_json, print_fleet
from trtspec.capacity.demand import Demand, DemandBurst, Lengths, lognormal
from trtspec.capacity.fleet import FleetArm, FleetRequirements, FleetResult, arm, checked, misses, reckon
from trtspec.capacity.measured import asked, measured
from trtspec.capacity.planned import Planned
from trtspec.capacity.replicas import EngineBytes, replica, weight
from trtspec.capacity.start import Rates
from trtspec.capacity.steady import LatencyBounds
from trtspec.capacity.tempo import Tempo
from trtspec.cli.terminal.output import out
from trtspec.measure.bench.result import read
from trtspec.measure.workloads.lengths import read_lengths
from trtspec.measure.workloads.synthetic import NAME, read_shape
from trtspec.pipeline.build.plan import BuildPlan
from trtspec.pipeline.plan.speed import pair_of, unforeseeable
from trtspec.pipeline.store.lookup import find_entry
from trtspec.pipeline.store.store import THREADS, Store
from trtspec.serving.tokenizer import Tokenizer

PLACES = 0.8
"""The default of `kubernetes.autoscaling.places`."""


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
    plain, drafts, any_acceptance = _arms(made, wanted, question)
    fleet = reckon(question, plain, drafts, any_acceptance)
    with out.progress("simulating", unit="requests") as advance:
        checked_plain = fleet.plain and checked(question, fleet.plain, wanted.seed, advance)
        with_drafts = checked(question, fleet.drafts, wanted.seed, advance)
    return replace(fleet, plain=checked_plain, drafts=with_drafts)


def _question(made: BuildPlan, wanted: FleetOptions) -> FleetRequirements:
    recipe = made.resolved.loaded.recipe
    asked = recipe.fleet
    rate = wanted.rate or asked.requests_per_second
    if rate is None:
        problem = "has no fleet.requests_per_second"
        raise UnavailableError(made.resolved.loaded.path, problem, "add it, or give --rate")
    demand = Demand(rate, _lengths(made, wanted), asked.burstiness)
    if asked.burst:
        burst = DemandBurst(asked.burst.factor, asked.burst.seconds, asked.burst.every)
        demand = replace(demand, burst=burst)
    _check_length(made, demand)
    start = asked.start
    giga = 10**9
    rates = Rates(
        start.node_seconds,
        start.image_gb * giga,
        start.image_gb_per_second * giga,
        start.pull_gb_per_second * giga,
        start.store_gb_per_second * giga,
        start.verify_gb_per_second * giga * THREADS,
        start.load_gb_per_second * giga,
        start.warm_up_seconds,
    )
    first, token = asked.time_to_first_token_ms, asked.inter_token_ms
    bounds = LatencyBounds(first and first / 1000, token and token / 1000)
    scaling = recipe.kubernetes.autoscaling
    price = asked.price_per_gpu_hour.get(recipe.hardware.gpu)
    return FleetRequirements(demand, bounds, rates, float(scaling.places) if scaling else PLACES, price)


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


def _check_length(made: BuildPlan, demand: Demand) -> None:
    longest = made.resolved.target.options.max_seq_len
    mean = demand.lengths.input + demand.lengths.output
    if mean > longest:
        problem = f"requests have {mean:,.0f} tokens on average, but engine.max_seq_len is {longest:,}"
        raise UnavailableError("the fleet", problem, "ask for shorter ones, or build for longer ones")


def _arms(
    made: BuildPlan, wanted: FleetOptions, question: FleetRequirements
) -> tuple[FleetArm | None, FleetArm, _AnyAcceptance | None]:
    resolved = made.resolved
    plain, drafts, any_acceptance = _tempos(made, wanted, question)
    arms = {
        has_drafts: arm(
            question,
            replica(resolved, tempo, has_drafts=has_drafts),
            _pulled(made, wanted, weight(resolved, has_drafts=has_drafts), has_drafts),
        )
        for has_drafts, tempo in ((False, plain), (True, drafts))
        if tempo is not None
    }
    return arms.get(False), arms[True], any_acceptance


class _AnyAcceptance:
    """The planned times of the engines at a given acceptance."""

    def __init__(self, made: BuildPlan) -> None:
        self.resolved = made.resolved
        self.pair = pair_of(made.resolved, made.resolved.target.options.max_draft_len)

    def __call__(self, acceptance: float) -> Tempo:
        return Planned(self.pair, [acceptance] * self.pair.longest, self.resolved.num_draft_tokens)


def _tempos(
    made: BuildPlan, wanted: FleetOptions, question: FleetRequirements
) -> tuple[Tempo | None, Tempo, _AnyAcceptance | None]:
    """Returns the times without drafts and with them: measured if possible, else planned."""
    if wanted.measured:
        result = read(wanted.measured)
        recipe = made.resolved.loaded.recipe.name
        if result.model.recipe not in (None, recipe):
            told = f"was measured for the recipe {result.model.recipe}, but this one is {recipe}"
            out.warning(f"{wanted.measured} {told}")
        with_drafts = measured(result, wanted.measured, has_drafts=True)
        if with_drafts is None:
            raise MeasureError(wanted.measured, "has no answers")
        _warn_of_others(wanted.measured, asked(result), question.demand.lengths)
        return measured(result, wanted.measured, has_drafts=False), with_drafts, None
    if reason := unforeseeable(made.resolved):
        name = made.resolved.loaded.path
        repair = f"trtspec bench {name} --output results, then trtspec plan {name} --fleet --measured results"
        raise UnavailableError("the fleet", f"cannot be computed: {reason}", repair)
    tempo = _AnyAcceptance(made)
    plain = Planned(replace(tempo.pair, draft=None))
    return plain, tempo(float(made.resolved.loaded.recipe.fleet.acceptance)), tempo


def _warn_of_others(file: Path, seen: tuple[float, float], lengths: Lengths) -> None:
    """Warns if requests are more than twice as long as the measured ones, or less than half as long."""
    for name, was, now in zip(("prompts", "answers"), seen, (lengths.input, lengths.output), strict=True):
        if was and not 0.5 <= now / was <= 2:
            told = (
                f"{file} was measured with {name} of {was:,.0f} tokens on average, and these have {now:,.0f}"
            )
            out.warning(f"{told}: measure with such, or read the times of turns with care")


def _pulled(made: BuildPlan, wanted: FleetOptions, planned: EngineBytes, has_drafts: bool) -> EngineBytes:
    """Returns the bytes of a replica; the store knows the exact size of a whole build."""
    if wanted.store is None or not has_drafts:
        return planned
    return replace(planned, whole=find_entry(Store(wanted.store), made.resolved.loaded.recipe.name).size)
