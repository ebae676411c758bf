"""Prints a planned fleet for people, and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from trtspec.base.units import three_digits
from trtspec.capacity.checks import InBurst, Seen
from trtspec.capacity.fleet import SLOWED, FleetArm, FleetRequirements, FleetResult
from trtspec.capacity.replicas import ColdStart
from trtspec.capacity.sizing import Sized
from trtspec.cli.terminal.output import out
from trtspec.measure.bench.result import Percentiles
from trtspec.pipeline.plan.resolved import Resolved
from trtspec.recipe import gpus

Cell = Callable[["FleetArm"], str | None]
_NOTHING = "-"


def print_fleet(fleet: FleetResult, resolved: Resolved, seed: int) -> None:
    """Prints the fleet with drafts and without, the times of a start, and the assumptions."""
    recipe = resolved.loaded.recipe
    arms = [arm for arm in (fleet.plain, fleet.drafts) if arm]
    names = ["without drafts", "with drafts"][-len(arms) :]
    out.sentence(f"{recipe.name}: {_asked(fleet.question)}")
    out.result()
    unit = "server" if recipe.hardware.gpu == gpus.NONE else "GPU"
    out.table(_rows(arms, unit, recipe.fleet.currency), header=("", *names))
    out.result()
    if any(arm.burst for arm in arms):
        burst = fleet.question.demand.burst
        header = f"{burst.factor:g} times as many for {burst.seconds:g} s" if burst else ""
        out.table(_bursts(arms), header=(header, *names))
        ready = [arm.burst.ready_after for arm in arms if arm.burst and arm.burst.ready_after is not None]
        after = f"the first additional replica is ready after {_time(min(ready))}" if ready else ""
        out.sentence(f"in a burst {after or 'no additional replica is ready before the burst ends'}")
        out.result()
    for arm in (fleet.drafts, fleet.plain):
        if arm and arm.start and arm.one_more:
            _print_start(arm.start, arm.one_more)
            out.result()
            break
    for line in _notes(fleet, resolved, unit, seed):
        out.sentence(line)


def _asked(question: FleetRequirements) -> str:
    demand, bounds = question.demand, question.bounds
    lengths = demand.lengths
    told = f"{demand.rate:,.10g} requests/s of {lengths.input:,.0f} + {lengths.output:,.0f} tokens on average"
    named = {"the first token": bounds.time_to_first_token, "each one after": bounds.inter_token}
    limits = [f"{name} within {_time(bound)}" for name, bound in named.items() if bound is not None]
    return f"{told}; for 95 of 100 {' and '.join(limits)}" if limits else f"{told}; no bound on latencies"


def _rows(arms: list[FleetArm], unit: str, currency: str) -> Iterator[tuple[str, ...]]:
    """Yields the lines that compare the arms, without lines that no arm has."""
    for name, cell in _lines(unit, currency):
        cells = [cell(arm) for arm in arms]
        if any(one is not None for one in cells):
            yield name, *(one or _NOTHING for one in cells)


def _lines(unit: str, currency: str) -> Iterator[tuple[str, Cell]]:
    yield "replicas", _usual(lambda _, usual: f"{usual.replicas:,}")
    yield f"{unit}s", _usual(lambda arm, usual: f"{usual.replicas * arm.replica.gpus:,}")
    yield "in a burst", lambda arm: f"{arm.peak.replicas:,} replicas" if arm.burst and arm.peak else None
    yield "one bears", lambda arm: f"{_digits(arm.each)} requests/s"
    yield "its use", _usual(lambda _, usual: f"{usual.steady.use:.0%}")
    yield "running sequences", _usual(lambda arm, usual: f"{usual.steady.texts:.1f} of {arm.replica.places}")
    yield "K", _usual(lambda _, usual: str(usual.steady.draft_length) if usual.steady.draft_length else None)
    yield "first token, p95", _usual(lambda _, usual: _time(usual.steady.time_to_first_token))
    yield "  simulated", _seen(lambda seen: seen.time_to_first_token)
    slower = f"  simulated, {SLOWED - 1:.0%} slower"
    yield slower, lambda arm: _time(arm.slowed.time_to_first_token.p95) if arm.slowed else None
    yield "each after, p95", _usual(lambda _, usual: _time(usual.steady.inter_token))
    yield "  simulated", _seen(lambda seen: seen.inter_token)
    yield "whole answer, mean", _usual(lambda _, usual: _time(usual.steady.end_to_end))
    yield "  simulated", lambda arm: _time(arm.seen.end_to_end.mean) if arm.seen else None
    yield f"{unit} hours, 1M tokens", lambda arm: _digits(arm.cost.gpu_hours) if arm.cost else None
    yield f"{currency}, 1M tokens", lambda arm: _money(arm.cost.million) if arm.cost else None
    yield f"{currency} an hour", lambda arm: _money(arm.cost.hour) if arm.cost else None
    yield "a replica pulls", lambda arm: three_digits(arm.weight.whole)
    yield "the store sends", lambda arm: three_digits(int(arm.start.traffic)) if arm.start else None


def _usual(words: Callable[[FleetArm, Sized], str | None]) -> Cell:
    return lambda arm: words(arm, arm.usual) if arm.usual else None


def _seen(figure: Callable[[Seen], Percentiles | None]) -> Cell:
    """Returns the cell of a figure's 95th percentile."""
    return lambda arm: _time(found.p95) if arm.seen and (found := figure(arm.seen)) else None


def _bursts(arms: list[FleetArm]) -> Iterator[tuple[str, ...]]:
    ways: tuple[tuple[str, Callable[[InBurst], Seen]], ...] = (
        ("as usual", lambda burst: burst.usual),
        ("with the autoscaler", lambda burst: burst.scaled),
        ("enough for it", lambda burst: burst.peak),
    )
    for name, way in ways:
        seen = [way(arm.burst) if arm.burst else None for arm in arms]
        yield (name, *(f"{one.replicas:,.0f} replicas" if one else _NOTHING for one in seen))
        first = [one.time_to_first_token if one else None for one in seen]
        yield ("  first token, p95", *(_time(one.p95) if one else _NOTHING for one in first))
        after = [one.inter_token if one else None for one in seen]
        yield ("  each after, p95", *(_time(one.p95) if one else _NOTHING for one in after))


def _print_start(start: ColdStart, one: ColdStart) -> None:
    """Prints the times of a start of all replicas at once, and of one that is added later."""
    parts = zip(one.parts, start.parts, strict=True)
    rows = [(part.name, _time(part.seconds), _time(all_.seconds), all_.because) for part, all_ in parts]
    header = ("cold start", "of one", f"of {start.replicas:,} at once", "")
    out.table([*rows, ("all", _time(one.seconds), _time(start.seconds), "")], header=header)


def _notes(fleet: FleetResult, resolved: Resolved, unit: str, seed: int) -> Iterator[str]:
    recipe, plain, drafts = resolved.loaded.recipe, fleet.plain, fleet.drafts
    yield from _worth(fleet, unit, float(recipe.fleet.acceptance))
    limit = drafts.replica.places_for(
        fleet.question.demand.lengths.input + fleet.question.demand.lengths.output
    )
    if limit < drafts.replica.places:
        yield f"the KV cache holds {limit} such sequences with drafts, fewer than there are slots"
    if recipe.draft is None:
        yield "drafts come from look-ups in the text: the plan assumes that each look-up finds something"
    if any(_is_beyond(arm) for arm in (plain, drafts) if arm):
        yield (
            "where the two differ much, trust the simulation: most of the wait is for prompts or for a free "
            "slot"
        )
    if fleet.question.price is None:
        yield f"no price: write fleet: {{price_per_gpu_hour: {{{recipe.hardware.gpu}: …}}}} in the recipe"
    if plain is None:
        yield "nothing was measured without drafts"
    if recipe.hardware.gpu == gpus.NONE:
        yield (
            "the engines share the processors with the server, which the simulation does not know: the first "
            "token may take two to eight times as long as it says"
        )
    yield (
        "requests go to any replica with equal probability, as a Kubernetes Service routes connections; a "
        f"replica is loaded to at most {fleet.question.bounds.use:.0%} of its capacity"
    )
    yield f"the simulation covers a part of the fleet with its part of the requests; its seed is {seed}"


def _worth(fleet: FleetResult, unit: str, acceptance: float) -> Iterator[str]:
    plain, drafts = fleet.plain, fleet.drafts
    if plain is None or plain.usual is None or drafts.usual is None:
        return
    before, after = (arm.usual.replicas * arm.replica.gpus for arm in (plain, drafts) if arm.usual)
    if after < before:
        yield f"drafts save {before - after:,} of {before:,} {unit}s"
    elif after > before:
        yield f"drafts take {after - before:,} {unit}s more than the {before:,} without"
    else:
        yield f"drafts save no {unit} of {before:,}"
    if fleet.break_even is not None:
        yield (
            f"break-even: a replica serves more with drafts from an acceptance of {fleet.break_even:.2f} on; "
            f"the plan assumes {acceptance:g}, and trtspec bench measures it"
        )


def _is_beyond(arm: FleetArm) -> bool:
    """Says whether first tokens take much longer in the simulation than in the arithmetic."""
    if arm.usual is None or arm.seen is None:
        return False
    return arm.seen.time_to_first_token.p95 > 1.5 * arm.usual.steady.time_to_first_token


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


def fleet_as_json(fleet: FleetResult, resolved: Resolved, seed: int) -> dict[str, Any]:
    """Returns the fleet; times are in seconds, sizes in bytes, rates per second."""
    demand = fleet.question.demand
    return {
        "recipe": resolved.loaded.recipe.name,
        "gpu": resolved.loaded.recipe.hardware.gpu,
        "seed": seed,
        "load": {
            "requests_per_second": demand.rate,
            "burstiness": demand.burstiness,
            "burst": demand.burst and demand.burst.model_dump(),
            "input_tokens": demand.lengths.input,
            "output_tokens": demand.lengths.output,
        },
        "bounds": asdict(fleet.question.bounds),
        "currency": resolved.loaded.recipe.fleet.currency,
        "price_per_gpu_hour": fleet.question.price,
        "without_drafts": fleet.plain and _arm_as_json(fleet.plain),
        "with_drafts": _arm_as_json(fleet.drafts),
        "break_even_acceptance": fleet.break_even,
    }


def _arm_as_json(arm: FleetArm) -> dict[str, Any]:
    usual, peak, start = arm.usual, arm.peak, arm.start
    return {
        "problem": arm.problem,
        "replicas": usual and usual.replicas,
        "gpus": usual and usual.replicas * arm.replica.gpus,
        "gpus_per_replica": arm.replica.gpus,
        "places": arm.replica.places,
        "requests_per_second_of_a_replica": arm.each,
        "steady": usual and asdict(usual.steady),
        "simulated": arm.seen and asdict(arm.seen),
        "simulated_if_slower": arm.slowed and {"factor": SLOWED, **asdict(arm.slowed)},
        "in_burst": {"replicas": peak and peak.replicas, "simulated": arm.burst and asdict(arm.burst)},
        "cost": arm.cost and asdict(arm.cost),
        "bytes_of_a_replica": arm.weight.whole,
        "store_traffic": start and start.traffic,
        "cold_start": start and {"seconds": start.seconds, "parts": [asdict(part) for part in start.parts]},
        "cold_start_of_one_more": arm.one_more and arm.one_more.seconds,
    }
