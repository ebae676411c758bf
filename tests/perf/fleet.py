"""Two replicas of the tiny pair under `trtspec deploy` beside the arithmetic of `trtspec plan --fleet`.

    python -m tests.perf.fleet [--paced] [--arms drafts plain] [--seeds 0 1 2] [--seconds 30] [--use 0.6]

Both replicas are on this machine, one engine thread each, and a client sends each request to one of them by
chance, as the plan assumes. First the same client measures them as `trtspec bench --streams` does, both at
once, since they share the processors. Then requests come at random times, of random lengths: 95 of 100 first
tokens and the mean answer, and how far the plan is off. What is measured before and after is put together, so
that a machine that gets slower meanwhile counts half. With `--paced` a step takes a GPU's time, in which the
processor is free (`fleet_model.py`): two replicas, their servers and the client are more than two processors
can do at once, and whoever waits for one of them waits for no engine. JSON on stdout, the bars on stderr; the
exit status is 1 where one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from tests.perf.bar import Bar
from tests.perf.load import DEADLINE_S, HERE, TINY, Texts
from tests.perf.pair import machine, run_build
from tests.support.ports import free_ports
from trtspec.capacity.demand import Demand, lognormal
from trtspec.capacity.fleet import Replica, state_of
from trtspec.capacity.speed import MeasuredSpeed, RequestTimes, speed_of_levels
from trtspec.client.endpoint import Api, Endpoint, EndpointRequest, TimedAnswer
from trtspec.client.finding import find
from trtspec.client.scrape import Scrape, parse, read
from trtspec.measure.bench.result import Arms, Inside, LoadResult, OfferedLoad, Targets
from trtspec.measure.bench.sample import Block, RequestSample
from trtspec.measure.bench.server_metrics import Meanwhile
from trtspec.measure.bench.statistics import percentiles
from trtspec.measure.bench.summary import figures
from trtspec.measure.bench.traffic import Manner, closed_loop, open_loop
from trtspec.measure.workloads.workload import Prompt, arrivals

PLACES, REPLICAS, PATIENCE_S = 16, 2, 120.0
STREAMS = (1, 2, 4, 8, 16)
DRAFTS = {"drafts": 4, "plain": 0}
LENGTHS = lognormal(40, 40, 0.4)
OFF_BY, CONFIDENCE = 0.2, 0.95


def main() -> int:
    options = parsed()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        build = run_build(TINY / "recipe.yaml", folder / "build")
        if options.paced:
            model = build / "model_repository/speculative_llm/1/model.py"
            shutil.copy(HERE / "fleet_model.py", model)
        servers = [stack.enter_context(replica(build, folder / str(number))) for number in range(REPLICAS)]
        results = asyncio.run(Comparison(servers, Texts(build), options).run())
    bars = [
        Bar(f"{arm}, seed {one['seed']}, {name}: off by", one["off"][name], OFF_BY, False)
        for arm, runs in results.items()
        for one in runs
        for name in one["off"]
    ]
    json.dump(
        {"machine": machine(), "arms": results, "bars": [asdict(bar) for bar in bars]}, sys.stdout, indent=1
    )
    print()
    print(*bars, sep="\n", file=sys.stderr)
    return 0 if all(bar.is_met for bar in bars) else 1


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--paced", action="store_true", help="steps take a GPU's time")
    parser.add_argument("--arms", nargs="+", choices=DRAFTS, default=list(DRAFTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, default=30.0, help="of each run")
    parser.add_argument("--use", type=float, default=0.6, help="of what the replicas bear")
    parser.add_argument("--burstiness", type=float, default=1.0)
    return parser.parse_args()


@dataclass(frozen=True)
class Server:
    """Where a replica is, and its metrics."""

    url: str
    metrics: str

    def look(self) -> Scrape:
        return parse(read(self.metrics), time.monotonic())


@contextmanager
def replica(build: Path, folder: Path) -> Iterator[Server]:
    """A server of its own on one engine thread."""
    shutil.copytree(build, folder)
    http, grpc, metrics = free_ports()
    ports = [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]
    recipe = str(TINY / "recipe.yaml")
    process = subprocess.Popen(
        [sys.executable, "-m", "trtspec", "deploy", recipe, "--output", str(folder), "--no-openai", *ports],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise SystemExit("the server did not start")
        yield Server(f"http://127.0.0.1:{http}", f"127.0.0.1:{metrics}")
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()


class AtRandom(Endpoint):
    """Several servers as one: a question goes to any of them."""

    api: Api = "triton"
    plain_per_request = True

    def __init__(self, endpoints: Sequence[Endpoint], seed: int) -> None:
        self._endpoints, self._dice = endpoints, random.Random(f"routing {seed}")
        self.url, self.model = endpoints[0].url, endpoints[0].model

    async def ask(self, question: EndpointRequest) -> TimedAnswer:
        return await self._dice.choice(self._endpoints).ask(question)

    async def close(self) -> None:
        """Closes nothing: who made the endpoints does."""


class Comparison:
    """The replicas, measured and loaded in turns."""

    def __init__(self, servers: Sequence[Server], texts: Texts, options: argparse.Namespace) -> None:
        self._servers, self._texts, self._options = servers, texts, options
        self._endpoints: list[Endpoint] = []

    async def run(self) -> dict[str, list[dict[str, Any]]]:
        for server in self._servers:
            found = await find(server.url, None, chat=False, timeout_s=PATIENCE_S)
            self._endpoints.append(found.endpoint)
        try:
            return {arm: await self._arm(arm) for arm in self._options.arms}
        finally:
            for endpoint in self._endpoints:
                await endpoint.close()

    async def _arm(self, arm: str) -> list[dict[str, Any]]:
        await self._blocks(4, arm)
        found, runs = [await self._levels(arm)], []
        options = self._options
        demand = Demand(rate(speed(found), options.use), LENGTHS, options.burstiness)
        for seed in options.seeds:
            times = arrivals(demand.rate, int(demand.rate * options.seconds), demand.burstiness, seed)
            pairs = random.Random(f"lengths {seed}").choices(LENGTHS.pairs, k=len(times))
            spread = AtRandom(self._endpoints, seed)
            block = await open_loop(spread, prompts(self._texts, pairs), times, manner(DRAFTS[arm]))
            found.append(await self._levels(arm))
            runs.append(compared(seed, demand, block, speed(found[-2:])))
        return runs

    async def _levels(self, arm: str) -> list[LoadResult]:
        """Measures so many streams at each replica, all at once."""
        found = []
        for streams in STREAMS:
            before = self._servers[0].look()
            seen = await self._blocks(streams, arm)
            inside = Inside(Meanwhile(before, self._servers[0].look()).round_times)
            found.append(
                LoadResult(
                    OfferedLoad("streams", streams), Arms(figures(seen, Targets(), CONFIDENCE, inside))
                )
            )
        return found

    async def _blocks(self, streams: int, arm: str) -> list[Block]:
        count, pairs = max(4 * streams, 24), LENGTHS.pairs
        asked = [pairs[(37 * number) % len(pairs)] for number in range(count)]
        return await asyncio.gather(
            *(
                closed_loop(endpoint, prompts(self._texts, asked), streams, manner(DRAFTS[arm]))
                for endpoint in self._endpoints
            )
        )


def speed(found: Sequence[Sequence[LoadResult]]) -> MeasuredSpeed:
    """Returns the mean of what several rounds of the levels have measured."""
    each = [speed_of_levels(levels, has_drafts=True) for levels in found]
    whole = [one.points for one in each if one]
    assert len(whole) == len(found)
    return MeasuredSpeed(tuple(_mean(points) for points in zip(*whole, strict=True)))


def _mean(points: Sequence[tuple[int, RequestTimes]]) -> tuple[int, RequestTimes]:
    columns = zip(*(astuple(times) for _, times in points), strict=True)
    return points[0][0], RequestTimes(*map(statistics.fmean, columns))


def rate(measured: MeasuredSpeed, use: float) -> float:
    full = measured.at(PLACES, LENGTHS)
    return use * REPLICAS * PLACES / full.answer(LENGTHS.output)


def prompts(texts: Texts, asked: Sequence[tuple[int, int]]) -> list[Prompt]:
    return [
        Prompt(str(number), (texts.one(given),), max_tokens=wanted)
        for number, (given, wanted) in enumerate(asked)
    ]


def manner(num_draft_tokens: int) -> Manner:
    return Manner(1, 0.0, 0, True, num_draft_tokens, None, _whole)


def _whole(sample: RequestSample, question: EndpointRequest, text: str) -> None:
    if sample.error is not None or sample.output_tokens != question.max_tokens:
        raise SystemExit(f"no whole answer: {sample}")


def compared(seed: int, demand: Demand, block: Block, measured: MeasuredSpeed) -> dict[str, Any]:
    state = state_of(Replica(measured, PLACES).times(LENGTHS), demand.of(1 / REPLICAS))
    first = percentiles([one.time_to_first_token or 0.0 for one in block.samples])
    whole = percentiles([one.end_to_end for one in block.samples])
    assert state is not None
    assert first is not None
    assert whole is not None
    found = {
        "seed": seed,
        "requests": first.count,
        "rate": round(demand.rate, 2),
        "load": [round(one, 1) for one in os.getloadavg()],
        "token_ms": {str(count): round(times.token * 1e3, 2) for count, times in measured.points},
        "first_token_p95_s": {"real": round(first.p95, 4), "planned": round(state.time_to_first_token, 4)},
        "end_to_end_mean_s": {"real": round(whole.mean, 4), "planned": round(state.end_to_end, 4)},
        "off": {
            "first token, p95": round(abs(state.time_to_first_token / first.p95 - 1), 3),
            "end to end, mean": round(abs(state.end_to_end / whole.mean - 1), 3),
        },
    }
    print(found, file=sys.stderr)
    return found


if __name__ == "__main__":
    sys.exit(main())
