"""`trtspec tune --schedule` measures K by the number of requests, and writes the recipe that follows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import typer

from trtspec.backends.table import load, runner_of
from trtspec.base.errors import MeasureError, TrtspecError
from trtspec.base.extras import require
from trtspec.cli.terminal.options import read_key
from trtspec.cli.terminal.output import out
from trtspec.cli.terminal.schedule import ShownSchedule
from trtspec.forecast.schedule import DraftSchedule
from trtspec.measure.workloads.reading import read_workload
from trtspec.measure.workloads.workload import NAME, Workload
from trtspec.pipeline.plan.schedule import check_form, draw_schedule, write_schedule
from trtspec.recipe.loader import LoadedRecipe
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
            running.check(by_requests := loaded.recipe.speculation.schedule or {})
            crossed = session.cross(by_requests)
            out.show(ShownCrossings(tuple(crossed)), as_json=options.json)
            _judge(crossed)
            return
        lengths, refused = tried(servers, longest)
        for why in refused:
            out.warning(why)
        found, crossings, failed = session.measure(lengths), list[Crossing](), ""
        if isinstance(servers, StartedServers) and not session.ended:
            servers.by_requests = found.by_requests
            try:
                crossings = session.cross(found.by_requests)
            except (KeyboardInterrupt, TrtspecError) as error:
                session.ended = error
                failed = "the run across its thresholds failed" if isinstance(error, TrtspecError) else ""
    found = replace(found, notes=(*found.notes, *_gaps(found, loaded, options.streams, crossings)))
    output = options.output or options.recipe.with_name(f"{options.recipe.stem}.tuned{options.recipe.suffix}")
    if any(crossing.holds is False for crossing in crossings):
        failed = "it collapses"
    written = None if failed else write_schedule(found, loaded, output)
    shown = ShownSchedule(found, written, failed) if failed else ShownSchedule(found, written)
    out.show(ShownTuned(shown, ShownCrossings(tuple(crossings))), as_json=options.json)
    if options.picture:
        draw_schedule(found, loaded.recipe.name, options.picture)
        out.status(f"{options.picture}: drawn")
    _judge(crossings)
    if session.ended:
        raise session.ended


def _gaps(
    found: DraftSchedule, loaded: LoadedRecipe, streams: Sequence[int], crossings: Sequence[Crossing]
) -> Iterator[str]:
    """Yields what was not measured of a schedule."""
    if len(found.rows) > 1 and not crossings and not runner_of(loaded.recipe).k_by_request:
        yield "no run crossed its thresholds: one does with --url schedule=URL, and a server of each K"
    low, high, most = streams[0], streams[-1], loaded.recipe.engine.max_batch_size
    if low > 1 or high < most:
        yield f"only {low} to {high} requests at once were measured, and the recipe serves 1 to {most}"


def _workload(written: str | None) -> Workload:
    if written is None:
        raise typer.BadParameter("your users' prompts are needed", param_hint="--workload")
    workload = read_workload(written)
    if workload.name == NAME:
        problem = "random words are no prompts of users: drafts are accepted otherwise there"
        raise typer.BadParameter(problem, param_hint="--workload")
    return workload


def _judge(crossings: Sequence[Crossing]) -> None:
    """Raises MeasureError if the server does not hold its speed across a threshold; warns of a doubt."""
    for crossing in crossings:
        if crossing.holds is None:
            out.warning(f"the run across {crossing.first} requests is not clear: make it on an idle machine")
        if crossing.holds is False:
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
