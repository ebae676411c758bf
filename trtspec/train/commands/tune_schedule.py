"""`trtspec tune --schedule` measures K by the number of requests, and writes the recipe that follows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import typer

from trtspec.backends.recipes import load
from trtspec.base.errors import MeasureError
from trtspec.base.extras import require
from trtspec.cli.terminal.options import read_key
from trtspec.cli.terminal.output import INTERRUPTED, out
from trtspec.cli.terminal.schedule import ShownSchedule
from trtspec.measure.workloads.reading import read_workload
from trtspec.measure.workloads.synthetic import NAME
from trtspec.measure.workloads.workload import Workload
from trtspec.pipeline.plan.picture import draw_schedule
from trtspec.pipeline.plan.schedule import check_form, write_schedule
from trtspec.train.tune.load_race import Crossing
from trtspec.train.tune.schedule_session import (
    ScheduleOptions,
    ScheduleSession,
    StartedServers,
    longest_of,
    measured_servers,
    servers_of,
    tried,
)

_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class ScheduleRequest:
    """The options of a schedule, as the command line has them."""

    recipe: Path
    workload: str | None
    streams: tuple[int, ...]
    longest: int | None
    turns: int | None
    max_tokens: int
    temperature: float
    chat: bool
    urls: Sequence[str]
    model_name: str | None
    api_key_file: Path | None
    python: Path | None
    work: Path | None
    output: Path | None
    picture: Path | None
    json: bool


def tune_schedule(options: ScheduleRequest) -> None:
    """Measures the schedule, writes it, and runs across its thresholds where the servers can."""
    require("trtspec tune --schedule", "scipy")
    loaded = load(options.recipe)
    longest = options.longest or longest_of(loaded)
    check_form(loaded, longest)
    workload = _workload(options.workload)
    if options.streams[-1] > (places := loaded.recipe.engine.max_batch_size):
        problem = f"the recipe serves {places} requests at once (engine.max_batch_size)"
        raise typer.BadParameter(problem, param_hint="--streams")
    answers = (options.max_tokens, options.temperature, options.chat, _TIMEOUT_S)
    wanted = ScheduleOptions(options.streams, longest, options.turns, *answers)
    running = servers_of(options.urls, options.model_name, read_key(options.api_key_file))
    work = options.work or Path("build") / f"{loaded.recipe.name}.tune"
    with measured_servers(loaded, running, work, wanted, options.python, out.status) as servers:
        session = ScheduleSession(servers, workload, wanted, out.status, out.progress)
        if running and None in running.of:
            crossed = session.cross(loaded.recipe.speculation.schedule or {})
            out.show(ShownCrossings(tuple(crossed)), as_json=options.json)
            _judge(crossed)
            return
        lengths, refused = tried(servers, longest)
        for why in refused:
            out.warning(why)
        found, crossings = session.measure(lengths), list[Crossing]()
        if isinstance(servers, StartedServers) and not session.was_stopped:
            servers.by_requests = found.by_requests
            crossings = session.cross(found.by_requests)
    output = options.output or options.recipe.with_name(f"{options.recipe.stem}.tuned{options.recipe.suffix}")
    holds = all(crossing.holds for crossing in crossings)
    written = write_schedule(found, loaded, output) if holds else None
    shown = ShownSchedule(found, written) if holds else ShownSchedule(found, written, "it collapses")
    out.show(ShownTuned(shown, ShownCrossings(tuple(crossings))), as_json=options.json)
    if options.picture:
        draw_schedule(found, loaded.recipe.name, options.picture)
        out.status(f"{options.picture}: drawn")
    _judge(crossings)
    if session.was_stopped:
        raise typer.Exit(INTERRUPTED)


def _workload(written: str | None) -> Workload:
    if written is None:
        raise typer.BadParameter("your users' prompts are needed", param_hint="--workload")
    workload = read_workload(written)
    if workload.name == NAME:
        problem = "random words are no prompts of users: drafts are accepted otherwise there"
        raise typer.BadParameter(problem, param_hint="--workload")
    return workload


def _judge(crossings: Sequence[Crossing]) -> None:
    """Raises MeasureError if the server does not hold its speed across a threshold."""
    for crossing in crossings:
        if not crossing.holds:
            repair = "serve it with one K, or try another release of the engine"
            raise MeasureError("speculation.schedule", f"collapses: {crossing}", repair)


@dataclass(frozen=True, slots=True)
class ShownCrossings:
    """The runs across the thresholds of a schedule."""

    crossings: tuple[Crossing, ...]

    def tell(self) -> None:
        """Prints each of them."""
        for crossing in self.crossings:
            out.sentence(str(crossing))

    def as_json(self) -> list[dict[str, Any]]:
        return [{**asdict(crossing), "holds": crossing.holds} for crossing in self.crossings]


@dataclass(frozen=True, slots=True)
class ShownTuned:
    """A schedule that was measured, and the runs across its thresholds."""

    schedule: ShownSchedule
    crossings: ShownCrossings

    def tell(self) -> None:
        self.schedule.tell()
        self.crossings.tell()

    def as_json(self) -> dict[str, Any]:
        return {**self.schedule.as_json(), "crossings": self.crossings.as_json()}
