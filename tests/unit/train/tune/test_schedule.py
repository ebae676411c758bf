"""`trtspec tune --schedule`: the policy on known blocks, and whole runs against simulated servers."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from tests.support.command_line import trtspec
from trtspec.backends.table import load
from trtspec.base.errors import MeasureError, ServerError, UnavailableError
from trtspec.forecast.schedule import schedule
from trtspec.measure.bench.sample import Block, RequestSample
from trtspec.measure.workloads.workload import Prompt, Workload
from trtspec.serving.stats import FALLBACKS
from trtspec.train.tune import schedule_session
from trtspec.train.tune.load_race import TURNS, LoadRace, by_context, crossing
from trtspec.train.tune.schedule_session import (
    LOOKS,
    LOOKS_OF_STARTS,
    Arm,
    AskedServer,
    ScheduleOptions,
    ScheduleSession,
    StartedServers,
    lengths_up_to,
    servers_of,
    tried,
)

RATES = {0: 100.0, 1: 130.0, 2: 160.0, 4: 158.0, 8: 60.0}
"""Tokens per second of each K, of which two are alike."""


def block(rate: float, prompts: Mapping[str, int] | None = None) -> Block:
    tokens, inputs = 20, prompts or {"p": 8}
    seconds = len(inputs) * tokens / rate
    samples = [
        RequestSample(name, "", 0, 0.0, 0.0, seconds, (seconds,), length, tokens)
        for name, length in inputs.items()
    ]
    return Block(tuple(samples), seconds, seconds)


def raced(dice: random.Random, noise: float, turns: int = TURNS) -> tuple[LoadRace, list[int]]:
    """A race on a machine whose speed drifts, and which K began each turn."""
    race, began = LoadRace(4, tuple(RATES)), []
    while not race.is_settled and race.turns < turns:
        machine, order = dice.lognormvariate(0, 0.3), race.order()
        began.append(order[0])
        for length in race.left:
            race.blocks[length].append(block(RATES[length] * machine * dice.lognormvariate(0, noise)))
        race.judge()
    return race, began


def test_a_slow_k_leaves_early_and_plain_decoding_stays() -> None:
    race, began = raced(random.Random(1), 0.03)
    assert race.is_settled
    assert set(race.left) >= {0, 2}
    assert len(race.blocks[8]) == 4 < len(race.blocks[0])
    gains = race.gains().gains
    assert gains[2].low < 1.6 < gains[2].high
    assert gains[8].high < 1
    assert len(set(began[:4])) == 4, "each K begins a turn before one begins another"


def test_order_that_is_not_clear_is_not_settled() -> None:
    race, _ = raced(random.Random(1), 0.3)
    assert (race.turns, race.is_settled) == (TURNS, False)


def test_the_interval_of_a_gain_has_the_truth_as_often_as_it_says() -> None:
    """Looking several times costs some of the 95 %, and the best K is hardly ever thrown out."""
    dice, held, best = random.Random(3), 0, 0
    for _ in range(200):
        race, _ = raced(dice, 0.1)
        gain = race.gains().gains[2]
        held += gain.low <= 1.6 <= gain.high
        best += 2 in race.left
    assert held >= 0.9 * 200
    assert best >= 0.97 * 200


def test_prompts_of_another_length_that_gain_otherwise_are_told() -> None:
    prompts = {f"{n}": 100 * n for n in range(1, 31)}
    race = LoadRace(4, (0, 2))

    def of(share: Callable[[int], float]) -> Block:
        """One block whose requests take as long as their prompts say."""
        found = block(100.0, prompts)
        samples = [
            RequestSample(
                s.prompt, "", 0, 0.0, 0.0, s.ended * share(s.input_tokens), s.pieces, s.input_tokens, 20
            )
            for s in found.samples
        ]
        return Block(tuple(samples), found.seconds, found.seconds)

    for length, share in ((0, lambda _: 1.0), (2, lambda tokens: 0.5 if tokens <= 1500 else 1.25)):
        race.blocks[length] += [of(share)] * 2
    told = by_context(race, 2)
    assert told
    assert "K = 2 gains 2.00 (2.00 to 2.00) with prompts up to 1550 tokens, and 0.80" in told
    race.blocks[2] = [of(lambda _: 0.5)] * 2
    assert by_context(race, 2) is None


@pytest.mark.parametrize(("own", "holds"), [(98.0, True), (91.0, True), (80.0, False)])
def test_a_run_across_a_threshold_is_held_to_the_better_side(own: float, holds: bool) -> None:
    found = crossing(5, 4, 0, {4: [90.0, 100.0], 0: [50.0, 60.0], None: [own * 0.9, own]})
    assert (round(found.share.value, 2), found.holds) == (own / 100, holds)
    assert ("holds" if holds else "COLLAPSES") in str(found)


@pytest.mark.parametrize("looks", [LOOKS_OF_STARTS, LOOKS])
def test_noise_is_hardly_ever_a_collapse_and_a_real_one_is_seen(looks: tuple[int, ...]) -> None:
    """All looks of a measurement together: the first that is clear ends it."""
    dice, false, seen = random.Random(4), 0, 0
    for _ in range(300):
        arms = {arm: [100 * dice.lognormvariate(0, 0.1) for _ in range(looks[-1])] for arm in (4, 0, None)}
        false += first_clear(arms, looks) is False
        seen += first_clear({**arms, None: [0.3 * rate for rate in arms[None]]}, looks) is False
    assert false <= 0.05 * 300
    assert seen >= 0.9 * 300


def first_clear(arms: Mapping[Arm, list[float]], looks: tuple[int, ...]) -> bool | None:
    found = (crossing(5, 4, 0, {arm: rates[:turns] for arm, rates in arms.items()}).holds for turns in looks)
    return next((holds for holds in found if holds is not None), None)


def test_a_run_whose_interval_reaches_below_the_least_is_not_clear() -> None:
    found = crossing(5, 4, 0, {4: [100.0, 100.0, 100.0], 0: [50.0, 50.0, 50.0], None: [70.0, 90.0, 110.0]})
    assert found.share.value < 0.9
    assert found.holds is None
    assert "not clear" in str(found)


def test_one_fast_turn_does_not_make_a_k_the_better_side() -> None:
    """The share is a geometric mean, and so is the comparison that chooses its denominator."""
    found = crossing(5, 4, 0, {4: [10.0, 250.0], 0: [100.0, 100.0], None: [100.0, 100.0]})
    assert found.share.value == pytest.approx(1.0)


def test_a_k_that_left_as_slower_has_less_gain_than_the_one_that_beat_it() -> None:
    """The leader's later turns were slower than plain decoding's, and the other K is not measured in them."""
    race = LoadRace(4, (0, 2, 4))
    for turn in range(8):
        slow = 1.0 if turn < 4 else 0.7
        for length, rate in ((0, 100.0), (2, 130.0 * slow), (4, 150.0 * slow)):
            if length in race.left:
                race.blocks[length].append(block(rate * (1 + 0.01 * (turn % 2))))
        race.judge()
    assert race.left == [0, 4]
    gains = race.gains().gains
    assert gains[2].value < gains[4].value
    assert gains[2].value == pytest.approx(130 / 150 * gains[4].value)
    assert schedule([race.gains()], is_measured=True, origin="").by_requests == {1: 4}


Pace = Callable[[int, int], float]
"""The seconds of an answer, by K and the number of requests that run."""


def usual(length: int, running: int) -> float:
    """Drafts are worth it for one or two requests."""
    return (0.04, 0.026, 0.018)[length] if running <= 2 else (0.04, 0.1, 0.2)[length]


@dataclass
class Simulated:
    """A server of OpenAI's API that has K by itself, or by a schedule, or from requests."""

    pace: Pace = usual
    owner: str = "vllm"
    length: int = 0
    schedule: Mapping[int, int] = field(default_factory=dict)
    collapses: bool = False
    drafts: bool = True
    fails: bool = False
    refused: Container[int] = ()
    """The numbers of the requests that fail, from 1."""
    why: str = ""
    """The words in which it says that it drafts nothing."""
    running = 0
    asked = 0
    last = -1

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "tiny", "owned_by": self.owner}]})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        assert not asked.get("ignore_eos")
        self.asked += 1
        if self.fails or self.asked in self.refused:
            return web.json_response({"error": {"message": "out of memory"}}, status=500)
        response = web.StreamResponse()
        await response.prepare(request)
        self.running += 1
        try:
            await asyncio.sleep(0)
            k = asked.get("num_draft_tokens", self.length)
            k = (
                [length for least, length in self.schedule.items() if least <= self.running][-1]
                if self.schedule
                else k
            )
            slow = 10 if self.collapses and self.last not in (-1, k) else 1
            self.last = k
            await asyncio.sleep(slow * self.pace(k, self.running))
        finally:
            self.running -= 1
        count = {"acceptance_histogram": [1, *[1] * k], "num_draft_tokens": k if self.drafts else 0}
        if not (k and self.drafts):
            count["nothing_drafted"] = self.why
        for event in (
            {"choices": [{"text": "text", "finish_reason": "stop"}]},
            {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 20}},
            {"choices": [], "metrics": {"speculative_decoding": count}},
        ):
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        return response


@contextmanager
def serving(served: Simulated) -> Iterator[str]:
    loop, started, ports = asyncio.new_event_loop(), threading.Event(), list[int]()

    async def begin() -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/v1/models", served.models)
        app.router.add_post("/v1/completions", served.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ports.append(runner.addresses[0][1])
        started.set()
        return runner

    def serve() -> None:
        runner = loop.run_until_complete(begin())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=serve)
    thread.start()
    assert started.wait(120)
    try:
        yield f"http://127.0.0.1:{ports[0]}/v1"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


WORKLOAD = Workload("w", "w.jsonl", tuple(Prompt(str(n), (f"prompt {n}",)) for n in range(400)))
WANTED = ScheduleOptions((1, 4), 2, None, 20, 0.0, False, 30.0)


@dataclass
class Restarted:
    """A server that is started for each K, and what it was started with."""

    served: Simulated
    url: str
    schedule: Mapping[int, int] = field(default_factory=dict)
    restarts: bool = True
    starts: list[Arm] = field(default_factory=list)
    fails: Mapping[Arm, int] = field(default_factory=dict)
    """The start of an arm that fails, from 1."""
    failure: BaseException = field(default_factory=lambda: ServerError("server", "ended at once\nCUDA"))

    @contextmanager
    def at(self, arm: Arm) -> Iterator[AskedServer]:
        self.starts.append(arm)
        if self.fails.get(arm) == self.starts.count(arm):
            raise self.failure
        self.served.length, self.served.last = arm or 0, -1
        self.served.schedule = self.schedule if arm is None else {}
        yield AskedServer(self.url)


@pytest.mark.sweep
def test_an_engine_that_keeps_its_k_is_started_for_each_and_the_time_is_told_before() -> None:
    served, said = Simulated(), list[str]()
    with serving(served) as url:
        servers = Restarted(served, url)
        session = ScheduleSession(servers, WORKLOAD, WANTED, said.append)
        found = session.measure((0, 1, 2))
        assert list(found.by_requests.values()) == [2, 0]
        assert 2 <= list(found.by_requests)[1] <= 4
        assert servers.starts[0] == 0
        assert servers.starts.count(2) >= 4
        (told,) = said
        assert told.startswith("about ")
        assert told.endswith(" for each, and runs across the thresholds")
        assert "up to 6 turns of K = 0, 1, 2 at 1, 4 streams, with a start of" in told
        servers.schedule = {1: 2, 3: 0}
        (crossed,) = session.cross(servers.schedule)
        assert crossed.holds is not False, crossed


def test_a_server_that_collapses_at_a_threshold_is_found() -> None:
    served = Simulated(collapses=True)
    with serving(served) as url:
        servers = Restarted(served, url, {1: 2, 3: 0})
        (found,) = ScheduleSession(servers, WORKLOAD, WANTED, lambda _: None).cross(servers.schedule)
    assert found.holds is False
    assert found.share.value < 0.6
    assert servers.starts.count(None) in LOOKS_OF_STARTS


def quick(length: int, running: int) -> float:
    return usual(length, running) / 4


def test_a_k_whose_server_does_not_start_is_left_out_and_plain_decoding_must_start() -> None:
    served = Simulated(quick)
    with serving(served) as url:
        session = ScheduleSession(Restarted(served, url, fails={2: 1}), WORKLOAD, WANTED, lambda _: None)
        found = session.measure((0, 1, 2))
        assert [sorted(level.gains) for level in found.levels] == [[1], [1]]
        assert "K = 2 is not tried: server: ended at once\nCUDA" in found.notes
        failing: list[Mapping[Arm, int]] = [{0: 2}, {1: 1}]
        for fails in failing:
            session = ScheduleSession(Restarted(served, url, fails=fails), WORKLOAD, WANTED, lambda _: None)
            with pytest.raises(ServerError, match="ended at once"):
                session.measure((0, 1))


@pytest.mark.parametrize(
    ("fails", "failure", "status", "is_written", "note"),
    [
        ({1: 4}, ServerError("server", "ended\nCUDA"), 1, True, "stopped early: server: ended\nCUDA"),
        ({None: 1}, ServerError("server", "ended\nCUDA"), 1, False, "no run crossed its thresholds: "),
        ({1: 4}, KeyboardInterrupt(), 130, True, "stopped early: fewer turns were measured than wanted"),
        ({None: 2}, KeyboardInterrupt(), 130, True, "no run crossed its thresholds: "),
    ],
)
def test_what_was_measured_is_kept_whatever_ends_it(
    pair_recipe: Path,
    workload: Path,
    monkeypatch: pytest.MonkeyPatch,
    fails: Mapping[Arm, int],
    failure: BaseException,
    status: int,
    is_written: bool,
    note: str,
) -> None:
    text = pair_recipe.read_text().replace("torch", "vllm").replace("gpu: none", "gpu: h100")
    pair_recipe.write_text(text.replace(", dtype: float32", ""))
    served = Simulated(quick)

    def at(self: StartedServers, arm: Arm) -> Any:
        own.schedule = self.by_requests
        return own.at(arm)

    monkeypatch.setattr(StartedServers, "at", at)
    monkeypatch.setattr(StartedServers, "prepared", lambda *_: None)
    words = ("--workload", workload, "--streams", "1,4", "--longest", 1, "--max-tokens", 20, "--json")
    with serving(served) as url:
        own = Restarted(served, url, fails=fails, failure=failure)
        done = trtspec("tune", pair_recipe, "--schedule", *words)
    assert done.returncode == status, done.stderr
    assert ("server: ended" in done.stderr) == (status == 1)
    found = json.loads(done.stdout)
    assert list(found["schedule"].values()) == [1, 0]
    assert any(one.startswith(note) for one in found["notes"])
    assert any("only 1 to 4 requests at once were measured" in one for one in found["notes"])
    assert (found["recipe"] is not None) == is_written
    if is_written:
        written = Path(found["recipe"])
        assert f"# schedule: {' '.join(note.split())}" in written.read_text()
        assert load(written).recipe.speculation.schedule


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    file = tmp_path / "users.jsonl"
    file.write_text("".join(f"{json.dumps({'prompt': f'prompt {n}'})}\n" for n in range(400)))
    return file


def test_trtspecs_own_server_is_asked_and_the_recipe_is_written(
    pair_recipe: Path, workload: Path, tmp_path: Path
) -> None:
    words = ("--workload", workload, "--streams", "1,4", "--longest", 2, "--max-tokens", 20, "--json")
    with serving(Simulated(owner="trtspec")) as url:
        picture = tmp_path / "s.svg"
        done = trtspec("tune", pair_recipe, "--schedule", "--url", url, *words, "--picture", picture)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    written = Path(found["recipe"])
    schedule = load(written).recipe.speculation.schedule
    assert schedule == {int(least): length for least, length in found["schedule"].items()}
    assert schedule
    assert list(schedule.values()) == [2, 0]
    assert found["is_measured"]
    assert written.read_text().startswith("# schedule: measured with trtspec, 400 prompts of users.jsonl")
    assert "K = 2" in picture.read_text()
    assert "about " in done.stderr


def test_servers_of_each_k_are_measured_and_the_run_across_the_threshold(
    pair_recipe: Path, workload: Path
) -> None:
    words = ("--workload", workload, "--streams", "1,4", "--max-tokens", 20)
    schedule = Simulated(schedule={1: 2, 3: 0}, collapses=True)
    with serving(Simulated()) as plain, serving(Simulated(length=2)) as drafting, serving(schedule) as own:
        urls = ("--url", f"0={plain}", "--url", f"2={drafting}")
        done = trtspec("tune", pair_recipe, "--schedule", *urls, *words, "--json")
        assert done.returncode == 0, done.stderr
        assert list(json.loads(done.stdout)["schedule"].values()) == [2, 0]
        text = pair_recipe.read_text()
        pair_recipe.write_text(text + "speculation: {schedule: {1: 2, 3: 0}}\n")
        crossed = trtspec("tune", pair_recipe, "--schedule", *urls, "--url", f"schedule={own}", *words)
    assert crossed.returncode == 1
    assert "across 3 requests (K = 2 below, 0 from there on) the schedule COLLAPSES" in crossed.stdout
    assert "speculation.schedule: collapses" in crossed.stderr


@pytest.mark.parametrize(
    ("served", "error", "problem"),
    [
        (Simulated(owner="vllm"), UnavailableError, "does not take K from a request"),
        (
            Simulated(owner="trtspec", fails=True),
            MeasureError,
            "K = 0 at 1 streams: 4 of 4 requests failed, first: .*out of memory",
        ),
        (
            Simulated(owner="trtspec", refused=range(60, 100)),
            MeasureError,
            r"K = [01] at \d streams: \d+ of \d+ requests failed, first: .*out of memory",
        ),
        (
            Simulated(owner="trtspec", drafts=False, why=FALLBACKS["policy"]),
            MeasureError,
            f"K = 1 at 1 streams: drafted nothing: {FALLBACKS['policy']}",
        ),
    ],
)
def test_a_server_that_cannot_be_measured_is_named(
    served: Simulated, error: type[Exception], problem: str
) -> None:
    with serving(served) as url:
        servers = servers_of([url], None, None)
        assert servers
        session = ScheduleSession(servers, WORKLOAD, WANTED, lambda _: None)
        with pytest.raises(error, match=problem):
            session.measure((0, 1))


def test_prompts_without_drafts_and_one_failed_request_are_measured() -> None:
    """Look-ups may find nothing at all, and one of several hundred requests is no broken server."""
    served = Simulated(owner="trtspec", drafts=False, why=FALLBACKS["nothing_found"], refused=[150])
    wanted = replace(WANTED, streams=(64,))
    with serving(served) as url:
        servers = servers_of([url], None, None)
        assert servers
        found = ScheduleSession(servers, WORKLOAD, wanted, lambda _: None).measure((0, 1))
    (note,) = (note for note in found.notes if "failed" in note)
    assert note.startswith("K = ")
    assert "at 64 streams: 1 of " in note


def test_a_server_of_no_k_and_one_without_plain_decoding_are_refused() -> None:
    with pytest.raises(UnavailableError, match="fast is no K"):
        servers_of(["fast=http://host/v1"], None, None)
    servers = servers_of(["4=http://a/v1", "2=http://b/v1"], None, None)
    assert servers
    with pytest.raises(UnavailableError, match="no server decodes plainly"):
        tried(servers, 4)
    every = servers_of(["http://user@host/v1?a=b"], None, None)
    assert every
    assert every.every
    assert tried(every, 4) == ((0, 1, 2, 3, 4), [])
    assert lengths_up_to(8) == (0, 1, 2, 3, 5, 8)


@pytest.mark.parametrize(
    ("schedule", "urls", "said"),
    [
        ("", ("schedule=http://a/v1", "0=http://b/v1"), "speculation.schedule: has no threshold"),
        ("{1: 4}", ("schedule=http://a/v1", "4=http://b/v1"), "speculation.schedule: has no threshold"),
        ("{1: 4, 9: 0}", ("schedule=http://a/v1", "4=http://b/v1"), "--url: no server has K = 0"),
    ],
)
def test_a_run_across_thresholds_that_cannot_be_made_is_refused(
    pair_recipe: Path, workload: Path, schedule: str, urls: tuple[str, ...], said: str
) -> None:
    if schedule:
        pair_recipe.write_text(f"{pair_recipe.read_text()}speculation: {{schedule: {schedule}}}\n")
    words = [word for url in urls for word in ("--url", url)]
    done = trtspec("tune", pair_recipe, "--schedule", "--workload", workload, *words)
    assert done.returncode == 1
    assert said in done.stderr


def test_a_build_of_another_recipe_is_not_measured(
    pair_recipe: Path, workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = SimpleNamespace(folder=tmp_path / "build", staleness="pair.yaml has changed since")
    monkeypatch.setattr(schedule_session, "find_build", lambda _: stale)
    done = trtspec("tune", pair_recipe, "--schedule", "--workload", workload)
    assert done.returncode == 1
    assert "pair.yaml has changed since" in done.stderr
    assert f"trtspec build {pair_recipe}" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--schedule", "--prompts", "32"), "--prompts: not with --schedule"),
        (("--schedule", "--answers", "a.jsonl", "--layers", "4"), "--answers, --layers: not with --schedule"),
        (("--schedule", "--method", "ngram", "--speed", "plan"), "--method, --speed: not with --schedule"),
        (("--streams", "1,4"), "several numbers go with --schedule"),
        (("--turns", "6"), "--url, --turns and --picture go with --schedule"),
        (("--schedule", "--streams", "1,0"), "whole numbers from 1 to 1024"),
        (("--schedule", "--streams", "1,64"), "serves 16 requests at once"),
        (("--schedule", "--workload", "synthetic:input=8"), "random words are no prompts of users"),
    ],
)
def test_options_that_do_not_go_together(
    pair_recipe: Path, workload: Path, words: tuple[str, ...], said: str
) -> None:
    given = words if "--workload" in words else ("--workload", str(workload), *words)
    done = trtspec("tune", pair_recipe, *given)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.replace("│", " ").split())


def test_a_recipe_whose_engine_has_no_schedule_is_refused_before_anything_is_measured(
    pair_recipe: Path, workload: Path
) -> None:
    text = (
        pair_recipe.read_text().replace("backend: torch", "backend: sglang").replace("gpu: none", "gpu: h100")
    )
    pair_recipe.write_text(text.replace(", dtype: float32", ""))
    done = trtspec("tune", pair_recipe, "--schedule", "--workload", workload)
    assert done.returncode == 1
    assert (
        "SGLang changes only the steps of EAGLE's heads by the number of requests"
        in done.stdout + done.stderr
    )
