"""`trtspec bench` against real servers: what it counts is what they count, and what it says is true."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyarrow.parquet import read_table

from tests.e2e.conftest import IN_PROCESS, ONLY_IN_PROCESS, RECIPE, TINY, TRTSPEC, Deploy, wait_until
from trtspec.client.endpoint import EndpointRequest
from trtspec.client.finding import find
from trtspec.deployment.deployment import rollout_file
from trtspec.measure.bench.plan import BenchPlan
from trtspec.measure.bench.result import Interval, OfferedLoad, read
from trtspec.measure.bench.sample import ArmName, LoadSamples, RequestSample
from trtspec.measure.bench.session import BenchArm, measure
from trtspec.measure.bench.statistics import ratio
from trtspec.measure.bench.traffic import OwnTraffic
from trtspec.measure.workloads.workload import Prompt, Workload, read_recorded
from trtspec.serving.rollout.state import SPECULATE

ROOT = Path(__file__).parents[2]
QUICK = ("--streams", "1,2", "--block-prompts", "2", "--max-tokens", "24")


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Code that the pair was not trained on, in two categories, and a talk of two turns."""
    file = tmp_path_factory.mktemp("workload") / "code.jsonl"
    rows = [
        {"question_id": number, "category": ("first", "second")[number % 2], "turns": [text]}
        for number, text in enumerate(held_out(24))
    ]
    rows.append({"question_id": "talk", "category": "talk", "turns": ["class Stack:\n", "class Queue:\n"]})
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file


def held_out(count: int) -> list[str]:
    library = Path(sysconfig.get_paths()["stdlib"])
    names = (TINY / "heldout.txt").read_text().split()
    texts = [(library / names[number % len(names)]).read_text(encoding="utf-8") for number in range(count)]
    return [text[len(text) // (2 + number) :][:200] for number, text in enumerate(texts)]


def bench(*options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [TRTSPEC, "bench", *map(str, options)], capture_output=True, text=True, env=None, timeout=300
    )


@IN_PROCESS
@pytest.mark.parametrize("api", [pytest.param("triton", marks=pytest.mark.sweep), "openai"])
def test_bench_counts_the_same_drafts_and_tokens_as_the_server(
    server: Deploy, tiny_recipe: Path, workload: Path, tmp_path: Path, api: str
) -> None:
    def told_now() -> dict[str, float]:
        names = ("draft_tokens", "accepted_tokens", "drafts")
        return {name: server.metric(f"spec_decode_num_{name}") for name in names}

    def counted() -> dict[str, float]:
        """What the server tells once it has counted anew from beginning to end; it does once a second."""
        for _ in range(2):
            seen = server.metric("counted_seconds")
            wait_until(lambda seen=seen: server.metric("counted_seconds") != seen, "new counts")  # type: ignore[misc]
        return told_now()

    url = f"http://127.0.0.1:{server.ports[0]}" if api == "triton" else server.api
    before = counted()
    told = ("--metrics-url", f"127.0.0.1:{server.ports[2]}", "--target-e2e", "60000", "--warm-up", "0")
    done = bench("--url", url, "--workload", workload, *QUICK, *told, "--output", tmp_path, "--keep-answers")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: server.metric("num_requests_running") == 0, "an idle server")
    grown = {name: value - before[name] for name, value in counted().items()}

    result = read(tmp_path)
    assert (result.server.api, result.server.plain_by, result.is_partial) == (api, "request", False)
    assert result.verdict.words in done.stdout
    assert [level.load for level in result.levels] == [OfferedLoad("streams", 1), OfferedLoad("streams", 2)]
    accepted = [level.arms.speculative.drafts for level in result.levels]
    sums = [drafts.acceptance for drafts in accepted if drafts]
    assert sum(each.drafted for each in sums) == grown["draft_tokens"]
    assert sum(each.accepted for each in sums) == grown["accepted_tokens"]
    assert sum(each.verifications for each in sums) == grown["drafts"]
    assert {"first", "second"} <= {name for drafts in accepted if drafts for name in drafts.by_category}
    for level in result.levels:
        assert level.arms.plain is not None
        assert (level.arms.plain.drafts, level.arms.plain.errors) == (None, {})
        assert level.speedup is not None
        assert len(level.pairs) == 6
        own = level.arms.speculative
        # The text is the same with drafts and without.
        assert own.output_tokens == level.arms.plain.output_tokens
        assert own.goodput is not None
        assert own.goodput.share == 1
        assert own.inside.round_times is not None
        # Engines that are models of their own do not say it.
        assert (own.inside.kv_reuse is None) == ("layout: bls" in tiny_recipe.read_text())
        assert own.inside.kv_reuse is None or 0.5 < own.inside.kv_reuse < 1
    rows = read_table(tmp_path / "samples.parquet").to_pylist()
    for level in result.levels:
        own = level.arms.speculative
        times, drafts = own.inside.round_times, own.drafts
        assert times is not None
        assert drafts is not None
        assert min(times.draft, times.verify, times.overhead) > 0
        # No request takes less time than its rounds.
        spent = sum(
            row["end_to_end_s"]
            for row in rows
            if (row["load"], row["arm"]) == (level.load.value, "speculative")
        )
        assert drafts.acceptance.verifications * (times.draft + times.verify + times.overhead) < spent
    assert len(rows) == sum(
        figures.requests
        for level in result.levels
        for figures in (level.arms.speculative, level.arms.plain)
        if figures
    )
    assert all(row["end_to_end_s"] >= row["time_to_first_token_s"] > 0 for row in rows)
    answers = read_recorded(tmp_path / "answers.jsonl")
    assert len(answers) == len(rows)
    assert all(answer.text for answer in answers)


@pytest.mark.sweep
@IN_PROCESS
def test_ctrl_c_keeps_what_was_measured(server: Deploy, workload: Path, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{server.ports[0]}"
    line = [
        TRTSPEC,
        "bench",
        "--url",
        url,
        "--workload",
        workload,
        *QUICK[2:],
        "--streams",
        "1",
        "--pairs",
        "400",
    ]
    process = subprocess.Popen(
        [*map(str, line), "--csv", "--output", str(tmp_path)], stderr=subprocess.PIPE, text=True
    )

    def pairs() -> int:
        file = tmp_path / "result.json"
        levels = read(tmp_path).levels if file.exists() else ()
        return len(levels[0].pairs) if levels else 0

    wait_until(lambda: pairs() >= 6, "six pairs of blocks")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "stopped early" in said
    result = read(tmp_path)
    assert result.is_partial
    assert result.levels[0].speedup is not None
    lines = (tmp_path / "samples.csv").read_text().splitlines()
    assert len(lines) > 2 * 2 * len(result.levels[0].pairs)
    # The request that was running has ended with it.
    wait_until(lambda: server.metric("num_requests_running") == 0, "an idle server")


@pytest.mark.sweep
@IN_PROCESS
def test_at_a_rate_latency_is_compared(server: Deploy, workload: Path, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{server.ports[0]}"
    options = ("--rate", "20", "--block-prompts", "4", "--max-tokens", "24", "--turns", "1")
    done = bench("--url", url, "--workload", workload, *options, "--output", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    (level,) = read(tmp_path).levels
    assert level.load == OfferedLoad("rate", 20)
    assert level.speedup is not None
    assert level.speedup.value == pytest.approx(_ratio_of_latencies(level.pairs).value)
    assert json.loads(done.stdout)["levels"][0]["load"] == {"kind": "rate", "value": 20.0}


def _ratio_of_latencies(pairs: tuple[tuple[float, float], ...]) -> Interval:
    found = ratio([(plain, own) for own, plain in pairs], 0.95)
    assert found is not None
    return found


@pytest.mark.sweep
@IN_PROCESS
def test_a_server_without_plain_decoding_needs_a_baseline(
    server: Deploy, workload: Path, tmp_path: Path
) -> None:
    """Another name of the owner makes a server of trtspec look like anyone's."""
    with renamed(server.api) as url:
        alone = bench("--url", url, "--workload", workload, *QUICK, "--output", tmp_path / "alone")
        assert alone.returncode == 0, alone.stderr
        both = bench(
            "--url", url, "--baseline", server.api, "--workload", workload, *QUICK,
            "--output", tmp_path / "both",
        )  # fmt: skip
        assert both.returncode == 0, both.stderr
    result = read(tmp_path / "alone")
    assert result.verdict.decision == "unmeasured"
    assert all(level.speedup is None and level.arms.plain is None for level in result.levels)
    assert "--baseline URL" in alone.stdout
    result = read(tmp_path / "both")
    assert (result.server.plain_by, result.server.baseline_url) == ("baseline", server.api)
    assert all(level.speedup for level in result.levels)


@contextmanager
def renamed(api: str) -> Iterator[str]:
    """OpenAI's API at another port, whose models are owned by somebody else."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.renamed_api", api], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.kill()


@pytest.mark.sweep
@IN_PROCESS
def test_a_recipe_is_served_measured_and_stopped(build_copy: Path, workload: Path, tmp_path: Path) -> None:
    """The log of a deployment of the same build stays as it is, and its roll-out is of its own requests."""
    log = build_copy / "tritonserver.log"
    log.write_text("of a deployment\n")
    rollout_file(build_copy).write_text(json.dumps({"version": 1, "mode": SPECULATE, "share": 0.05}))
    options = ("--streams", "1", "--block-prompts", "1", "--max-tokens", "16", "--turns", "1")
    done = bench(RECIPE, "--build", build_copy, "--workload", workload, *options, "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    result = read(tmp_path)
    assert (result.model.recipe, result.model.target, result.server.api) == ("tiny", "./target", "openai")
    assert "starting Triton" in done.stderr
    assert "stopping Triton" in done.stderr
    assert log.read_text() == "of a deployment\n"
    assert "served/tritonserver.log" in done.stderr
    assert not any("roll-out" in note for note in result.verdict.notes)
    gone = bench("--url", result.server.url, "--workload", workload, "--output", tmp_path / "gone")
    assert gone.returncode == 1
    assert "does not answer" in gone.stderr


@pytest.mark.sweep
@ONLY_IN_PROCESS
def test_a_schedule_is_measured_on_a_server_that_runs(
    server: Deploy, tiny_recipe: Path, workload: Path, tmp_path: Path
) -> None:
    words = ("--streams", "1,2", "--longest", "1", "--turns", "6", "--max-tokens", "16", "--json")
    command = [
        TRTSPEC,
        "tune",
        tiny_recipe,
        "--schedule",
        "--url",
        server.api,
        "--workload",
        workload,
        *words,
    ]
    done = subprocess.run(
        [*map(str, command), "--output", str(tmp_path / "tuned.yaml")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["is_measured"]
    assert "trtspec" in found["origin"]
    for level in found["levels"]:
        assert 0 < level["gains"]["1"]["low"] <= level["gains"]["1"]["high"]
    assert set(found["schedule"].values()) <= {0, 1}
    assert (found["recipe"] is None) == (not any(found["schedule"].values()))


class Silent:
    """Listens to a measurement and says nothing."""

    def began(self, load: OfferedLoad, measured: list[LoadSamples]) -> None: ...

    def warm(self) -> None: ...

    def heard(self, arm: ArmName, sample: RequestSample, question: EndpointRequest, text: str) -> None: ...

    def paired(self, measured: list[LoadSamples]) -> None: ...


def against_itself(server: Deploy, seed: int, pairs: int = 8) -> Interval:
    """The ratio of the target alone to the target alone."""

    async def work() -> Interval:
        found = await find(f"http://127.0.0.1:{server.ports[0]}", None, chat=False, timeout_s=60)
        prompts = tuple(Prompt(str(number), (text,)) for number, text in enumerate(held_out(12)))
        plan = BenchPlan(
            Workload("w", "w", prompts), (OfferedLoad("streams", 1),), paired=True, pairs=pairs,
            block_prompts=1,
            max_tokens=48, seed=seed, ignore_eos=True,
        )  # fmt: skip
        arm = BenchArm(found.endpoint, 0)
        try:
            (level,) = await measure(plan, {"speculative": arm, "plain": arm}, OwnTraffic(), Silent())
        finally:
            await found.endpoint.close()
        pairs_of = [
            (pair["speculative"].tokens_per_second, pair["plain"].tokens_per_second) for pair in level.pairs
        ]
        interval = ratio(pairs_of, 0.95)
        assert interval is not None
        return interval

    return asyncio.run(work())


def has_one(interval: Interval) -> bool:
    return interval.low <= 1 <= interval.high


@IN_PROCESS
@pytest.mark.sweep
def test_a_against_a_is_no_difference(server: Deploy) -> None:
    """In 95 of 100 runs; that two or more of three say otherwise happens once in 140."""
    assert sum(has_one(against_itself(server, seed)) for seed in range(3)) >= 2


@ONLY_IN_PROCESS
@pytest.mark.sweep
def test_a_against_a_over_many_runs(server: Deploy) -> None:
    """That fewer than 34 of 40 have 1 within happens once in 300."""
    assert sum(has_one(against_itself(server, seed)) for seed in range(40)) >= 34


@ONLY_IN_PROCESS
@pytest.mark.sweep
def test_with_a_busy_core_the_interval_still_has_the_truth(server: Deploy) -> None:
    """Another program that takes a core in bursts of its own."""
    burst = (
        "import random, time\n"
        "dice = random.Random(1)\n"
        "while True:\n"
        "    end = time.perf_counter() + dice.uniform(0.1, 0.6)\n"
        "    while time.perf_counter() < end: pass\n"
        "    time.sleep(dice.uniform(0.1, 0.6))\n"
    )
    others = [subprocess.Popen([sys.executable, "-c", burst]) for _ in range(2)]
    try:
        busy = [against_itself(server, seed) for seed in range(10)]
    finally:
        for other in others:
            other.kill()
            other.wait()

    assert sum(map(has_one, busy)) >= 8
