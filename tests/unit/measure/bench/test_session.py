"""A run against a server of one's own: what is written, and what is not."""

from __future__ import annotations

import asyncio
import csv
import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from pyarrow.parquet import read_table

from trtspec.measure.bench import session
from trtspec.measure.bench.plan import BenchPlan
from trtspec.measure.bench.result import Arms, BenchResult, OfferedLoad, read
from trtspec.measure.bench.sample import ArmName, RequestSample
from trtspec.measure.bench.session import BenchTargets, run
from trtspec.measure.bench.traffic import OwnTraffic
from trtspec.measure.prove.proof import merged
from trtspec.measure.workloads.workload import Prompt, Workload, read_recorded

Outcome = tuple[BenchResult, tuple[Path, ...]]
KEY = "sk-a-secret-that-nobody-may-see"
WORKLOAD = Workload("w", "w.jsonl", tuple(Prompt(str(n), (f"prompt {n}",), "c") for n in range(100)))
PLAN = BenchPlan(WORKLOAD, (OfferedLoad("streams", 2),), paired=False, block_prompts=4, warm_up=0)


class Server:
    """OpenAI's API as trtspec has it; every fifth answer is a refusal. `keys` are the headers that came."""

    def __init__(self) -> None:
        self.keys: set[str | None] = set()
        self.asked: list[dict[str, Any]] = []

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "tiny", "owned_by": "trtspec"}]})

    async def tell(self, request: web.Request) -> web.Response:
        """Of each prompt with drafts the cache had nothing, of each without them all of its ten tokens."""
        plain = sum(asked.get("num_draft_tokens") == 0 for asked in self.asked)
        asked, found = 10 * len(self.asked), 10 * plain
        labels = '{model="tiny",engine="target"}'
        return web.Response(
            text=f"trtspec:prefix_cache_queries{labels} {asked}\ntrtspec:prefix_cache_hits{labels} {found}\n"
        )

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.keys.add(request.headers.get("Authorization"))
        self.asked.append(await request.json())
        if self.asked[-1]["messages"][0]["content"].endswith("4"):
            return web.json_response({"error": {"message": "full"}}, status=503)
        response = web.StreamResponse()
        await response.prepare(request)
        for event in (
            {"choices": [{"delta": {"content": "text"}, "finish_reason": "stop"}]},
            {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}},
        ):
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        return response


@pytest.fixture
def server() -> Iterator[tuple[Server, str]]:
    with serving() as found:
        yield found


@contextmanager
def serving() -> Iterator[tuple[Server, str]]:
    served, loop, started = Server(), asyncio.new_event_loop(), threading.Event()
    ports: list[int] = []

    async def begin() -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/v1/models", served.models)
        app.router.add_get("/metrics", served.tell)
        app.router.add_post("/v1/chat/completions", served.answer)
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
    yield served, f"http://127.0.0.1:{ports[0]}/v1"
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


class Watcher:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def __call__(self, of: BenchResult, plan: BenchPlan) -> Watcher:
        return self

    def began(self, load: OfferedLoad, prompts: int) -> None:
        self.told.append(f"{load}: {prompts} prompts")

    def warm(self) -> None:
        self.told.append("warm")

    def heard(self, arm: ArmName, sample: RequestSample) -> None: ...

    def paired(self, result: BenchResult) -> None:
        self.told.append(f"{len(result.levels[0].pairs)} pairs, partial: {result.is_partial}")


def bench(
    url: str, folder: Path, *, as_csv: bool, plan: BenchPlan = PLAN, baseline: str | None = None
) -> tuple[Outcome, Watcher]:
    watcher = Watcher()
    asked = BenchTargets(url, None, baseline, None, 30.0, folder, as_csv, keeps_answers=True, key=KEY)
    return asyncio.run(run(plan, asked, watcher, OwnTraffic())), watcher


@pytest.mark.parametrize("as_csv", [False, True])
def test_everything_is_written_but_the_key(server: tuple[Server, str], tmp_path: Path, as_csv: bool) -> None:
    served, url = server
    (found, files), watcher = bench(url, tmp_path, as_csv=as_csv)
    assert served.keys == {f"Bearer {KEY}"}
    names = {"result.json", "samples.csv" if as_csv else "samples.parquet", "answers.jsonl"}
    assert {file.name for file in files} == names == {file.name for file in tmp_path.iterdir()}
    assert not any(KEY.encode() in file.read_bytes() for file in tmp_path.iterdir())
    assert watcher.told == [
        "2 streams: 48 prompts",
        "warm",
        *(f"{number} pairs, partial: True" for number in range(1, 7)),
    ]
    result = read(tmp_path)
    assert result == found
    assert not result.is_partial
    (level,) = result.levels
    assert level.arms.plain is not None
    # Of prompts 0 to 23 those that end with 4 are refused, in both arms, and are counted.
    for arm in (level.arms.speculative, level.arms.plain):
        assert (arm.requests, arm.errors) == (24, {"refused": 2})
    assert any(
        "2 of 24 requests with drafts failed: refused 2 (503: full)" in n for n in result.verdict.notes
    )
    assert any("all blocks had one API key" in note for note in result.verdict.notes)
    rows = (
        list(csv.DictReader((tmp_path / "samples.csv").open()))
        if as_csv
        else read_table(tmp_path / "samples.parquet").to_pylist()
    )
    assert len(rows) == 48
    assert sum(row["error"] == "refused" for row in rows) == 4
    plain = [asked for asked in served.asked if asked.get("num_draft_tokens") == 0]
    assert len(plain) == len(served.asked) / 2


def test_blocks_take_turns_in_beginning(server: tuple[Server, str], tmp_path: Path) -> None:
    served, url = server
    bench(url, tmp_path, as_csv=True)
    arms = ["plain" if "num_draft_tokens" in asked else "speculative" for asked in served.asked]
    blocks = [arms[place] for place in range(0, 48, 4)]
    assert blocks == ["speculative", "plain", "plain", "speculative"] * 3
    texts = [asked["messages"][0]["content"] for asked in served.asked]
    for pair in range(6):
        first, second = texts[8 * pair : 8 * pair + 4], texts[8 * pair + 4 : 8 * pair + 8]
        assert sorted(first) == sorted(second) == sorted(f"prompt {4 * pair + n}" for n in range(4))


def test_results_on_the_way_take_no_more_than_their_share(
    server: tuple[Server, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no time for them after the first one, the last has all the same."""
    monkeypatch.setattr(session, "_FREE_S", 0.0)
    monkeypatch.setattr(session, "_MOST_SHARE", 0.0)
    _, url = server
    (found, _), watcher = bench(url, tmp_path, as_csv=True)
    assert watcher.told[2:] == ["1 pairs, partial: True"]
    assert read(tmp_path) == found
    assert len(found.levels[0].pairs) == 6
    assert len(read_recorded(tmp_path / "answers.jsonl")) == 44


def test_each_arm_has_its_own_share_of_the_cache(server: tuple[Server, str], tmp_path: Path) -> None:
    _, url = server
    (found, _), _ = bench(url, tmp_path, as_csv=True)
    (level,) = found.levels
    assert level.arms.speculative.inside.kv_reuse == 0
    assert level.arms.plain is not None
    assert level.arms.plain.inside.kv_reuse == 1


def test_a_baseline_tells_of_its_own_cache(server: tuple[Server, str], tmp_path: Path) -> None:
    with serving() as (_, baseline):
        (found, _), _ = bench(server[1], tmp_path, as_csv=True, baseline=baseline)
    (level,) = found.levels
    assert level.arms.plain is not None
    assert (level.arms.speculative.inside.kv_reuse, level.arms.plain.inside.kv_reuse) == (0, 1)


def test_answers_are_those_of_the_run_that_the_result_is_of(
    server: tuple[Server, str], tmp_path: Path
) -> None:
    _, url = server
    bench(url, tmp_path, as_csv=True)
    bench(url, tmp_path, as_csv=True, plan=replace(PLAN, temperature=0.5))
    answers = read_recorded(tmp_path / "answers.jsonl")
    assert [answer.sampling["temperature"] for answer in answers] == [0.5] * 44


def test_a_run_without_answers_leaves_none_of_an_earlier_run(
    server: tuple[Server, str], tmp_path: Path
) -> None:
    _, url = server
    bench(url, tmp_path, as_csv=True)
    refused = Workload("w", "w.jsonl", tuple(Prompt(str(n), ("prompt 4",)) for n in range(100)))
    (_, files), _ = bench(url, tmp_path, as_csv=True, plan=replace(PLAN, workload=refused))
    names = {"result.json", "samples.csv"}
    assert {file.name for file in files} == names == {file.name for file in tmp_path.iterdir()}


def test_signals_mean_afterwards_what_they_meant_before(server: tuple[Server, str], tmp_path: Path) -> None:
    """A proof measures in the middle of its work, and SIGTERM is to end the rest in order too."""

    def end(*_: object) -> None: ...

    known = signal.signal(signal.SIGTERM, end)
    try:
        bench(server[1], tmp_path, as_csv=True)
        assert signal.getsignal(signal.SIGTERM) is end
    finally:
        signal.signal(signal.SIGTERM, known)


def test_two_runs_become_one_of_the_loads_that_both_have(server: tuple[Server, str], tmp_path: Path) -> None:
    _, url = server
    (first, _), _ = bench(url, tmp_path / "a", as_csv=True)
    longer = replace(PLAN, loads=(*PLAN.loads, OfferedLoad("streams", 4)))
    (second, _), _ = bench(url, tmp_path / "b", as_csv=True, plan=longer)
    (level,) = merged(first, second).levels
    assert level.load == OfferedLoad("streams", 2)
    assert level.arms == Arms(second.levels[0].arms.speculative, first.levels[0].arms.speculative)
    assert level.speedup is not None
    assert level.speedup.low < level.speedup.value < level.speedup.high
