"""`trtspec plan --fleet` sizes the replicas for a load, with drafts and without, and prices them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trtspec.base.errors import UnavailableError
from trtspec.capacity import fleet
from trtspec.capacity.demand import Demand, Lengths, lognormal
from trtspec.capacity.fleet import (
    FleetArm,
    FleetRequirements,
    LatencyBounds,
    planned_replica,
)
from trtspec.capacity.speed import ForecastSpeed, ReplicaSpeed, measured_speeds
from trtspec.cli.terminal.output import out
from trtspec.forecast.outlook import GainVerdict, within
from trtspec.measure.bench.result import BenchResult, read
from trtspec.measure.workloads.reading import read_lengths
from trtspec.measure.workloads.workload import NAME, read_shape
from trtspec.pipeline.build.plan import BuildPlan
from trtspec.pipeline.plan.resolved import Resolved
from trtspec.pipeline.plan.speed import pair_of, unforeseeable
from trtspec.recipe import gpus
from trtspec.serving.tokenizer import Tokenizer

_NOTHING = "-"


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """The options of the command line; they override the recipe."""

    rate: float | None
    workload: str | None
    measured: Path | None


@dataclass(frozen=True, slots=True)
class PlannedFleet:
    """The fleets for a load, with drafts and without."""

    resolved: Resolved
    need: FleetRequirements
    plain: FleetArm | None
    """The plain arm; None if it was not measured."""
    drafts: FleetArm

    def tell(self) -> None:
        """Prints both fleets and the assumptions."""
        recipe = self.resolved.loaded.recipe
        arms = [arm for arm in (self.plain, self.drafts) if arm]
        names = ["without drafts", "with drafts"][-len(arms) :]
        out.sentence(f"{recipe.name}: {_load(self.need)}")
        out.result()
        columns = [_column(arm, self._unit, recipe.fleet.currency) for arm in arms]
        lines = ((name, [column.get(name) for column in columns]) for name in max(columns, key=len))
        rows = [(name, *(cell or _NOTHING for cell in cells)) for name, cells in lines if any(cells)]
        out.table(rows, header=("", *names))
        out.result()
        for note in (*self._worth(), *self._assumptions()):
            out.sentence(note)

    def as_json(self) -> dict[str, Any]:
        """Returns the fleet; times are in seconds, sizes in bytes, rates per second."""
        demand, recipe = self.need.demand, self.resolved.loaded.recipe
        return {
            "recipe": recipe.name,
            "gpu": recipe.hardware.gpu,
            "load": {
                "requests_per_second": demand.rate,
                "burstiness": demand.burstiness,
                "input_tokens": demand.lengths.input,
                "output_tokens": demand.lengths.output,
            },
            "bounds": asdict(self.need.bounds),
            "currency": recipe.fleet.currency,
            "price_per_gpu_hour": self.need.price,
            "without_drafts": self.plain and _arm_as_json(self.plain),
            "with_drafts": _arm_as_json(self.drafts),
            "verdict": self._verdict,
        }

    @property
    def _verdict(self) -> GainVerdict | None:
        """The answer to whether drafts pay in spite of the error of times; None without two fleets."""
        arms = (self.plain, self.drafts)
        plain, drafts = (arm.fleet.replicas * arm.replica.gpus if arm and arm.fleet else None for arm in arms)
        if not plain or not drafts:
            return None
        return within(plain / drafts, self.drafts.replica.speed.spread).verdict

    @property
    def _unit(self) -> str:
        return "server" if self.resolved.loaded.recipe.hardware.gpu == gpus.NONE else "GPU"

    def _worth(self) -> Iterator[str]:
        """Yields how many GPUs drafts save."""
        if self.plain is None or self.plain.fleet is None or self.drafts.fleet is None:
            return
        before = self.plain.fleet.replicas * self.plain.replica.gpus
        after, unit = self.drafts.fleet.replicas * self.drafts.replica.gpus, self._unit
        if self._verdict == "measure":
            error = f"times may be off by {self.drafts.replica.speed.spread:.0%}"
            yield f"measure: {after:,} {unit}s with drafts, {before:,} without, and {error}"
        elif after < before:
            yield f"drafts save {before - after:,} of {before:,} {unit}s"
        elif after > before:
            yield f"drafts take {after - before:,} {unit}s more than the {before:,} without"
        else:
            yield f"drafts save no {unit} of {before:,}"

    def _assumptions(self) -> Iterator[str]:
        recipe, demand = self.resolved.loaded.recipe, self.need.demand
        limit = self.drafts.replica.places_for(demand.lengths.input + demand.lengths.output)
        if limit < self.drafts.replica.places:
            yield f"the KV cache holds {limit} such sequences with drafts, fewer than there are slots"
        if recipe.draft is None:
            yield "drafts come from look-ups in the text: the plan assumes that each look-up finds something"
        if self.need.price is None:
            yield f"no price: write fleet: {{price_per_gpu_hour: {{{recipe.hardware.gpu}: …}}}} in the recipe"
        if self.plain is None:
            yield "nothing was measured without drafts"
        if recipe.hardware.gpu == gpus.NONE:
            yield "the engines share the processors with the server, which makes first tokens later than this"
        yield (
            "requests go to any replica with equal probability, as a Kubernetes Service routes connections; "
            f"a replica is loaded to at most {self.need.bounds.use:.0%} of its capacity"
        )


def plan_fleet(made: BuildPlan, wanted: FleetOptions) -> PlannedFleet:
    """Returns the fleet of a plan; raises UnavailableError if the speed of its engines is unknown."""
    resolved, need = made.resolved, _requirements(made, wanted)
    plain, drafts = _speeds(resolved, wanted, need.demand.lengths)
    alone = fleet.size(need, planned_replica(resolved, plain, has_drafts=False)) if plain else None
    server = planned_replica(resolved, drafts, has_drafts=True)
    planned = PlannedFleet(resolved, need, alone, fleet.size(need, server))
    for name, arm in (("without drafts", planned.plain), ("with drafts", planned.drafts)):
        if arm and arm.problem:
            out.warning(f"{name}: no number of replicas is enough: {arm.problem}")
    return planned


def _requirements(made: BuildPlan, wanted: FleetOptions) -> FleetRequirements:
    recipe = made.resolved.loaded.recipe
    asked = recipe.fleet
    rate = wanted.rate or asked.requests_per_second
    if rate is None:
        problem = "has no fleet.requests_per_second"
        raise UnavailableError(made.resolved.loaded.path, problem, "add it, or give --rate")
    demand = Demand(rate, _lengths(made, wanted), asked.burstiness)
    longest, mean = made.resolved.target.options.max_seq_len, demand.lengths.input + demand.lengths.output
    if mean > longest:
        problem = f"requests have {mean:,.0f} tokens on average, but engine.max_seq_len is {longest:,}"
        raise UnavailableError("the fleet", problem, "ask for shorter ones, or build for longer ones")
    first, token = asked.time_to_first_token_ms, asked.inter_token_ms
    bounds = LatencyBounds(first and first / 1000, token and token / 1000)
    price = asked.price_per_gpu_hour.get(recipe.hardware.gpu)
    return FleetRequirements(demand, bounds, price)


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


def _speeds(
    resolved: Resolved, wanted: FleetOptions, lengths: Lengths
) -> tuple[ReplicaSpeed | None, ReplicaSpeed]:
    """Returns the speed without drafts, None if it was not measured, and with them."""
    recipe, path = resolved.loaded.recipe, resolved.loaded.path
    if wanted.measured:
        result = read(wanted.measured)
        if result.model.recipe not in (None, recipe.name):
            was = f"was measured for the recipe {result.model.recipe}, but this one is {recipe.name}"
            out.warning(f"{wanted.measured} {was}")
        _warn_of_others(wanted.measured, result, lengths)
        return measured_speeds(result, wanted.measured)
    if reason := unforeseeable(resolved):
        repair = f"trtspec bench {path} --output results, then trtspec plan {path} --fleet --measured results"
        raise UnavailableError("the fleet", f"cannot be computed: {reason}", repair)
    pair = pair_of(resolved, resolved.target.options.max_draft_len)
    drafts = ForecastSpeed(pair, float(recipe.fleet.acceptance), resolved.num_draft_tokens)
    return ForecastSpeed(replace(pair, draft=None), length=0), drafts


def _warn_of_others(file: Path, result: BenchResult, lengths: Lengths) -> None:
    """Warns if requests are more than twice as long as the measured ones, or less than half as long."""
    seen = [level.arms.speculative for level in result.levels]
    answered = sum(figures.requests - figures.failed for figures in seen) or 1
    measured = (
        ("prompts", sum(figures.input_tokens for figures in seen) / answered, lengths.input),
        ("answers", sum(figures.output_tokens for figures in seen) / answered, lengths.output),
    )
    for name, was, now in measured:
        if was and not 0.5 <= now / was <= 2:
            differ = f"was measured with {name} of {was:,.0f} tokens on average, and these have {now:,.0f}"
            out.warning(f"{file} {differ}: measure with such, or read the times with care")


def _load(need: FleetRequirements) -> str:
    lengths, bounds = need.demand.lengths, need.bounds
    tokens = f"{lengths.input:,.0f} + {lengths.output:,.0f} tokens on average"
    load = f"{need.demand.rate:,.10g} requests/s of {tokens}"
    named = {"the first token": bounds.time_to_first_token, "each one after": bounds.inter_token}
    limits = [f"{name} within {_time(bound)}" for name, bound in named.items() if bound is not None]
    return f"{load}; for 95 of 100 {' and '.join(limits)}" if limits else f"{load}; no bound on latencies"


def _column(arm: FleetArm, unit: str, currency: str) -> dict[str, str | None]:
    """Returns what the table says of an arm, by the names of its lines, which are fewer without a fleet."""
    bears = f"{_digits(arm.goodput)} requests/s"
    if arm.fleet is None:
        return {"one bears": bears}
    sized, state, cost = arm.fleet, arm.fleet.state, arm.fleet.cost
    fewer, more = ("no number" if count is None else f"{count:,}" for count in sized.spread)
    return {
        "replicas": f"{sized.replicas:,}",
        "  if times are off": f"{fewer} to {more} (±{arm.replica.speed.spread:.0%})",
        f"{unit}s": f"{sized.replicas * arm.replica.gpus:,}",
        "one bears": bears,
        "its use": f"{state.use:.0%}",
        "running sequences": f"{state.running:.1f} of {arm.replica.places}",
        "K": str(state.draft_length) if state.draft_length else None,
        "first token, p95": _time(state.time_to_first_token),
        "each after, p95": _time(state.inter_token),
        "whole answer, mean": _time(state.end_to_end),
        f"{unit} hours, 1M tokens": _digits(cost.gpu_hours),
        f"{currency}, 1M tokens": _money(cost.million),
        f"{currency} an hour": _money(cost.hour),
    }


def _time(seconds: float) -> str:
    if round(seconds * 1000) < 1000:
        return f"{seconds * 1000:.3g} ms" if seconds else "0 s"
    if seconds < 600:
        return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _digits(value: float) -> str:
    """Returns a number with three significant digits, and without an exponent where it is large."""
    return f"{float(f'{value:.3g}'):,.10g}"


def _money(value: float | None) -> str | None:
    return None if value is None else f"{value:,.2f}"


def _arm_as_json(arm: FleetArm) -> dict[str, Any]:
    sized, replica = arm.fleet, arm.replica
    state = asdict(sized.state) if sized else None
    if state is not None:
        state["texts"] = state.pop("running")
    return {
        "problem": arm.problem,
        "replicas": sized and sized.replicas,
        "spread": {"times": replica.speed.spread, "replicas": sized and sized.spread},
        "gpus": sized and sized.replicas * replica.gpus,
        "gpus_per_replica": replica.gpus,
        "places": replica.places,
        "requests_per_second_of_a_replica": arm.goodput,
        "steady": state,
        "cost": sized and asdict(sized.cost),
    }
