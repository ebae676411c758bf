"""Measures K against the number of streams on a server, in turns, and runs across thresholds of a schedule.

trtspec's own server takes K from each request. Other engines have one K from their start to their end: they
are started for each, or there is a running server of each K already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice, pairwise
from pathlib import Path
from time import perf_counter
from typing import Protocol, TypeVar

from trtspec.backends.table import runner_of
from trtspec.base.errors import MeasureError, RecipeError, ServerError, TrtspecError, UnavailableError
from trtspec.base.files import write_atomically
from trtspec.base.progress import Advance, Progress, no_progress
from trtspec.client.endpoint import Endpoint
from trtspec.client.finding import find, shown
from trtspec.deployment.build import find_build
from trtspec.forecast.schedule import DraftSchedule, schedule
from trtspec.measure.bench.deployed import served
from trtspec.measure.bench.plan import BenchPlan
from trtspec.measure.bench.result import OfferedLoad
from trtspec.measure.bench.sample import Block
from trtspec.measure.bench.traffic import Manner, closed_loop
from trtspec.measure.html.numbers import duration
from trtspec.measure.workloads.workload import Prompt, Workload
from trtspec.pipeline.build.build import build
from trtspec.pipeline.plan.resolved import MAX_DRAFT_LEN, MAX_DRAFT_LEN_CPU
from trtspec.pipeline.plan.schedule import LONGEST, SCHEDULE, K, scheduled
from trtspec.recipe import gpus
from trtspec.recipe.edit import edit, places
from trtspec.recipe.loader import LoadedRecipe
from trtspec.serving.stats import FALLBACKS
from trtspec.train.tune.load_race import (
    FEWEST_LOOKED,
    TURNS,
    TURNS_OF_STARTS,
    Crossing,
    LoadRace,
    by_context,
    crossing,
)

Arm = int | None
"""A K, 0 for plain decoding; or None for the schedule."""
Found = TypeVar("Found")

LENGTHS = (1, 2, 3, 5, 8, 12, 16, 24, 32, 48, 64)
"""The K that are tried, as far as the longest, which is tried too."""
LOOKS, LOOKS_OF_STARTS = (6, 12, 24), (3, 6)
"""The turns after which runs across thresholds end if all are clear; fewer where each run is a start."""
WARM_UP = "warm-up"
MOST_FAILED = 0.02
"""The share of a block's requests that may fail: the others are faster without them."""
FORBIDDEN = {FALLBACKS[why] for why in ("policy", "rollout", "sampling", "num_draft_tokens")}
"""The reasons for no drafts that hold for any prompt."""


@dataclass(frozen=True, slots=True)
class AskedServer:
    """The address of a server that is ready."""

    url: str
    model_name: str | None = None
    key: str | None = None
    takes_k: bool = False
    """True if it must take K from each request."""


class ScheduleServers(Protocol):
    """The servers of a measurement."""

    @property
    def restarts(self) -> bool:
        """True if each K is a start of its own."""
        ...

    def at(self, arm: Arm) -> AbstractContextManager[AskedServer]:
        """Yields a server of this K, or of the schedule, which answers until the end of the block."""
        ...


@dataclass(frozen=True, slots=True)
class RunningServers:
    """Servers that run already: one of each K; or one that takes K from each request, as `every`."""

    every: AskedServer | None
    of: Mapping[Arm, AskedServer] = field(default_factory=dict)
    restarts: bool = False

    def check(self, by_requests: Mapping[int, int]) -> None:
        """Raises UnavailableError if no run can cross this schedule here."""
        if len(by_requests) < 2:
            problem = "has no threshold that a run could cross"
            raise UnavailableError(SCHEDULE, problem, "leave out --url schedule=URL, and tune measures one")
        for length in sorted({*by_requests.values()} - {*self.of}):
            if not self.every:
                problem = f"no server has K = {length}, which the schedule has"
                raise UnavailableError("--url", problem, f"add --url {length}=URL")

    def at(self, arm: Arm) -> AbstractContextManager[AskedServer]:
        found = self.of.get(arm, self.every)
        assert found is not None
        return nullcontext(found)


@dataclass(slots=True)
class StartedServers:
    """Starts a server of each K from a recipe of its own, which is built below `work`; no engine is built."""

    loaded: LoadedRecipe
    work: Path
    largest: int
    chat: bool
    python: Path | None
    say: Callable[[str], None]
    by_requests: Mapping[int, int] = field(default_factory=dict)
    """The schedule of the arm None."""
    restarts: bool = True

    @contextmanager
    def at(self, arm: Arm) -> Iterator[AskedServer]:
        found = self.prepared(arm)
        how = {"chat": self.chat, "python": self.python, "say": self.say, "plain": arm == 0}
        with served(find_build(found, found.with_suffix("")), **how) as target:  # type: ignore[arg-type]
            yield AskedServer(target.url, target.model_name)

    def prepared(self, arm: Arm) -> Path:
        """Returns the recipe of an arm, built; raises what a build raises."""
        length = arm or self.largest
        changes = {SCHEDULE: None, K: length, LONGEST: None}
        if arm is None:
            changes = scheduled(self.loaded, self.by_requests)
        name = "schedule" if arm is None else f"k-{length}"
        found = self.work / f"{name}.yaml"
        text = self.loaded.path.read_text(encoding="utf-8-sig")
        write_atomically(found, edit(text, {**places(self.loaded, None), **changes}, self.loaded.path))
        build(found, output=found.with_suffix(""), warn=self.say)
        return found


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """The measurement that is wanted."""

    streams: tuple[int, ...]
    """In rising order."""
    longest: int
    turns: int | None
    max_tokens: int
    temperature: float
    chat: bool
    timeout_s: float


def longest_of(loaded: LoadedRecipe) -> int:
    """Returns the longest draft that the recipe's target verifies."""
    speculation = loaded.recipe.speculation
    usual = MAX_DRAFT_LEN_CPU if loaded.recipe.hardware.gpu == gpus.NONE else MAX_DRAFT_LEN
    written = speculation.max_draft_len or speculation.largest or speculation.num_draft_tokens
    return written or usual


def lengths_up_to(longest: int) -> tuple[int, ...]:
    return (0, *sorted({*(length for length in LENGTHS if length < longest), longest}))


class ScheduleSession:
    """Measures a schedule, or a run across its thresholds, with the prompts of a workload.

    `say` is told the time that it takes before it begins, and `watch` counts blocks.
    """

    def __init__(
        self,
        servers: ScheduleServers,
        workload: Workload,
        wanted: ScheduleOptions,
        say: Callable[[str], None],
        watch: Progress = no_progress,
    ) -> None:
        self._servers, self._wanted, self._say, self._watch = servers, wanted, say, watch
        self._plan = BenchPlan(workload, (), paired=False)
        self._prompts, self._sent = cycle(workload.prompts), 0
        self.software: str | None = None
        self._notes: list[str] = []
        self.ended: KeyboardInterrupt | TrtspecError | None = None

    def measure(self, lengths: Sequence[int]) -> DraftSchedule:
        """Returns the schedule of these K, of which one is 0; raises MeasureError for a server that fails.

        Ctrl-C or an error, then in `ended`, ends the measurement with the turns that are complete, if
        there are two of each load.
        """
        turns = self._wanted.turns or (TURNS_OF_STARTS if self._servers.restarts else TURNS)
        races = [LoadRace(streams, tuple(lengths)) for streams in self._wanted.streams]
        self._look(lengths, turns)
        try:
            with self._watch("measuring K", turns * len(races) * len(lengths)) as advance:
                for turn in range(turns):
                    if all(race.is_settled for race in races):
                        break
                    self._turn(turn, [race for race in races if not race.is_settled], advance)
        except (KeyboardInterrupt, TrtspecError) as error:
            if min(race.turns for race in races) < 2:
                raise
            self.ended = error
        return self._result(races)

    def _result(self, races: Sequence[LoadRace]) -> DraftSchedule:
        prompts = len(self._plan.workload.prompts)
        notes = [*dict.fromkeys(self._notes)]
        if self.ended:
            notes.append(f"stopped early: {str(self.ended) or 'fewer turns were measured than wanted'}")
        if self._sent > prompts:
            notes.append(f"{prompts} prompts were sent repeatedly: a cache of prompts makes them faster")
        open_ = [str(race.streams) for race in races if not race.is_settled]
        if open_ and not self.ended:
            notes.append(
                f"the order of K is not clear at {', '.join(open_)} streams: more --turns may settle it"
            )
        turns = max(race.turns for race in races)
        origin = (
            f"measured with {self.software or 'the server'}, {prompts} prompts of"
            f" {self._plan.workload.source}, {turns} turns; intervals of 95 %"
        )
        found = schedule([race.gains() for race in races], is_measured=True, origin=origin)
        chosen = {streams: length for row in found.rows for streams, length, _ in row.gains}
        told = (by_context(race, chosen[race.streams]) for race in races if race.streams in chosen)
        return DraftSchedule(found.rows, found.levels, True, origin, (*notes, *filter(None, told)))

    def cross(self, by_requests: Mapping[int, int]) -> list[Crossing]:
        """Returns the runs across each threshold of a schedule, beside the same with the K of either side.

        They end with the first look that finds all of them clear.
        """
        edges = [(first, before, after) for (_, before), (first, after) in pairwise(by_requests.items())]
        if not edges:
            return []
        looks = LOOKS_OF_STARTS if self._servers.restarts else LOOKS
        turns = looks[-1]
        found: list[Crossing] = []
        arms: list[Arm] = [*sorted({length for _, *both in edges for length in both}), None]
        rates: dict[tuple[int, Arm], list[float]] = {}
        with self._watch("running across the thresholds", turns * len(arms)) as advance:
            for turn in range(turns):
                asked = {first: self._some(8 * 2 * first) for first, _, _ in edges}
                for arm in arms[turn % len(arms) :] + arms[: turn % len(arms)]:
                    concerned = [first for first, *both in edges if arm is None or arm in both]
                    runs = partial(self._runs, arm, turn, {first: asked[first] for first in concerned})
                    for first, rate in self._visit(arm, runs).items():
                        rates.setdefault((first, arm), []).append(rate)
                    advance(1)
                if turn + 1 not in looks:
                    continue
                found = [
                    crossing(first, before, after, {arm: rates[first, arm] for arm in (before, after, None)})
                    for first, before, after in edges
                ]
                if all(one.holds is not None for one in found):
                    break
        return found

    async def _runs(
        self, arm: Arm, turn: int, asked: Mapping[int, Sequence[Prompt]], endpoint: Endpoint
    ) -> dict[int, float]:
        """Returns the tokens per second of a run that goes up and down across each of these thresholds."""
        await self._warm_up(endpoint, arm, turn, max(asked))
        found = {}
        for first, prompts in asked.items():
            low, high = max(first // 2, 1), min(2 * first, max(first, *self._wanted.streams))
            left, tokens, seconds = iter(prompts), 0, 0.0
            for streams in (low, high, low, high, low):
                block = await self._block(endpoint, arm, list(islice(left, 2 * streams)), streams, "across")
                tokens += sum(sample.output_tokens for sample in block.samples if sample.error is None)
                seconds += block.seconds
            found[first] = tokens / seconds
        return found

    def _look(self, lengths: Sequence[int], turns: int) -> None:
        """Sends a block of each load without drafts, as a warm-up, and says how long all will take."""
        begin = perf_counter()
        begun: list[float] = []

        async def look(endpoint: Endpoint) -> float:
            begun.append(perf_counter())
            for streams in self._wanted.streams:
                await self._block(endpoint, 0, self._some(self._in_block(streams)), streams)
            return perf_counter() - begun[0]

        visit, starts, crossings = self._visit(0, look), "", 0.0
        if self._servers.restarts:
            visit += begun[0] - begin
            starts = f", with a start of {duration(begun[0] - begin)} for each"
            if thresholds := min(len(self._wanted.streams), len(lengths)) - 1:
                crossings = LOOKS_OF_STARTS[-1] * (thresholds + 2) * visit
                starts += ", and runs across the thresholds"
        turn = visit * len(lengths)
        # Most K leave with the first look, and two are measured to the end.
        least = min(turn * FEWEST_LOOKED + 4 * turn / len(lengths), turn * turns)
        self._say(
            f"about {duration(least)} to {duration(turn * turns + crossings)}: up to {turns} turns of K = "
            f"{', '.join(map(str, lengths))} at {', '.join(map(str, self._wanted.streams))} streams{starts}"
        )

    def _turn(self, turn: int, races: Sequence[LoadRace], advance: Advance) -> None:
        """Measures each K that is left on new prompts; a start serves all loads."""
        groups = [list(races)] if self._servers.restarts else [[race] for race in races]
        asked = {race.streams: self._some(self._in_block(race.streams)) for race in races}
        for group in groups:
            found: dict[tuple[int, int], Block] = {}
            order = group[0].order()
            order += [length for race in group[1:] for length in race.left if length not in order]
            for length in dict.fromkeys(order):
                own = [race for race in group if length in race.left]
                work = partial(
                    self._measured, length, turn, {race.streams: asked[race.streams] for race in own}
                )
                try:
                    blocks = self._visit(length, work)
                except ServerError as error:
                    is_last = len(own[0].left) == 2
                    if turn or not length or is_last or not self._servers.restarts:
                        raise
                    self._notes.append(f"K = {length} is not tried: {error}")
                    for race in own:
                        race.left.remove(length)
                    continue
                for streams, block in blocks.items():
                    found[streams, length] = block
                    advance(1, f"turn {turn + 1}")
            for race in group:  # A turn counts whole, or not at all.
                for length in race.left:
                    race.blocks[length].append(found[race.streams, length])
                race.judge()

    async def _measured(
        self, length: int, turn: int, asked: Mapping[int, Sequence[Prompt]], endpoint: Endpoint
    ) -> dict[int, Block]:
        await self._warm_up(endpoint, length, turn, max(asked))
        return {
            streams: await self._block(endpoint, length, prompts, streams, f"{turn}")
            for streams, prompts in asked.items()
        }

    async def _warm_up(self, endpoint: Endpoint, arm: Arm, turn: int, streams: int) -> None:
        if self._servers.restarts or not turn:
            await self._block(endpoint, arm, self._some(streams), streams)

    async def _block(
        self, endpoint: Endpoint, arm: Arm, prompts: Sequence[Prompt], streams: int, name: str = WARM_UP
    ) -> Block:
        wanted = self._wanted
        asked = arm if endpoint.plain_per_request else None
        manner = Manner(
            wanted.max_tokens,
            wanted.temperature,
            0,
            False,
            asked,
            f"tune-{streams}-{name}-{arm}",
            lambda *_: None,
        )
        block = await closed_loop(endpoint, prompts, streams, manner)
        where = f"{'the schedule' if arm is None else f'K = {arm}'} at {streams} streams"
        if failed := _check(block, shown(endpoint.url), where, drafts=bool(arm) and name != WARM_UP):
            self._notes.append(f"{where}: {failed}")
        return block

    def _visit(self, arm: Arm, work: Callable[[Endpoint], Awaitable[Found]]) -> Found:
        """Returns what `work` finds at a server of an arm; its own event loop lets Ctrl-C end a start."""
        wanted = self._wanted
        with self._servers.at(arm) as server:

            async def ask() -> Found:
                limits = {"chat": wanted.chat, "timeout_s": wanted.timeout_s}
                found = await find(server.url, server.model_name, key=server.key, **limits)  # type: ignore[arg-type]
                self.software = found.software or self.software
                if server.takes_k and not found.endpoint.plain_per_request:
                    repair = "name one of each K, 0=URL 4=URL; or none: each is started by the recipe"
                    raise UnavailableError(shown(server.url), "does not take K from a request", repair)
                try:
                    return await work(found.endpoint)
                finally:
                    await found.endpoint.close()

            return asyncio.run(ask())

    def _some(self, number: int) -> list[Prompt]:
        self._sent += number
        return list(islice(self._prompts, number))

    def _in_block(self, streams: int) -> int:
        return self._plan.prompts_per_block(OfferedLoad("streams", streams))


def _check(block: Block, url: str, where: str, *, drafts: bool) -> str:
    """Returns the few failures of a block in words; "" without one.

    Raises MeasureError for a block with more, for one without answers, and with `drafts` for one that has no
    drafts for a reason that is none of the prompts.
    """
    failed = [sample.problem for sample in block.samples if sample.error]
    said = f"{len(failed)} of {len(block.samples)} requests failed, first: {failed[0]}" if failed else ""
    if len(failed) > MOST_FAILED * len(block.samples) or block.tokens_per_second <= 0:
        raise MeasureError(url, f"{where}: {said or 'answers have no text'}", "see the server's log")
    counts = [sample.counts for sample in block.samples if sample.counts]
    why = next((each.undrafted for each in counts if FORBIDDEN & {*each.undrafted.split("; ")}), None)
    if drafts and why and not any(each.drafted for each in counts):
        repair = "serve a recipe without speculation.schedule and without a roll-out, and measure that"
        raise MeasureError(url, f"{where}: drafted nothing: {why}", repair)
    return said


def servers_of(urls: Sequence[str], model_name: str | None, key: str | None) -> RunningServers | None:
    """Returns the running servers of `[K=]URL`, where `schedule=URL` serves the schedule; None for none.

    Raises UnavailableError for a word before the sign that is neither.
    """
    of: dict[Arm, AskedServer] = {}
    every = None
    for written in urls:
        word, sign, url = written.partition("=")
        if not sign or "/" in word:
            every = AskedServer(written, model_name, key, takes_k=True)
        elif word == "schedule" or word.isdecimal():
            of[None if word == "schedule" else int(word)] = AskedServer(url, model_name, key)
        else:
            repair = "write 4=URL, 0=URL for no drafts, or schedule=URL"
            raise UnavailableError(written, f"{word} is no K", repair)
    return RunningServers(every, of) if urls else None


@contextmanager
def measured_servers(
    loaded: LoadedRecipe,
    running: RunningServers | None,
    work: Path,
    wanted: ScheduleOptions,
    python: Path | None,
    say: Callable[[str], None],
) -> Iterator[ScheduleServers]:
    """Yields the servers of a recipe: those that run, its build, or one that is started for each K.

    Raises RecipeError where the recipe of our own server has a schedule, which bounds K while it is measured,
    and UnavailableError for a build of another recipe.
    """
    if running:
        yield running
        return
    if not runner_of(loaded.recipe).k_by_request:
        yield StartedServers(loaded, work, wanted.longest, wanted.chat, python, say)
        return
    if loaded.recipe.speculation.schedule:
        problem = "bounds K in the build that is measured"
        finding = loaded.problem(SCHEDULE, problem, "remove this line, and build again; the engines stay")
        raise RecipeError(loaded.path, [finding])
    found = find_build(loaded.path)
    if stale := found.staleness:
        raise UnavailableError(found.folder, stale, f"trtspec build {loaded.path}; the engines stay")
    with served(found, chat=wanted.chat, python=python, say=say) as target:
        yield RunningServers(AskedServer(target.url, target.model_name, takes_k=True))


def tried(servers: ScheduleServers, longest: int) -> tuple[tuple[int, ...], list[str]]:
    """Returns the K to measure, and why others are not; raises UnavailableError without a server of K = 0."""
    lengths = lengths_up_to(longest)
    if isinstance(servers, RunningServers) and servers.every is None:
        lengths = tuple(sorted(arm for arm in servers.of if arm is not None))
        if 0 not in lengths or len(lengths) < 2:
            repair = "name servers of several K, one of them plain: --url 0=URL --url 4=URL"
            raise UnavailableError("--url", "no server decodes plainly", repair)
        return lengths, []
    if not isinstance(servers, StartedServers):
        return lengths, []
    kept, refused = [0], []
    for length in lengths[1:]:
        try:
            servers.prepared(length)
            kept.append(length)
        except UnavailableError:
            raise
        except TrtspecError as error:
            refused.append(f"K = {length} is not tried: {error}")
    if len(kept) < 2:
        raise UnavailableError("tune --schedule", "; ".join(refused) or "there is no K to try")
    servers.largest = kept[-1]
    return tuple(kept), refused
