"""Two replicas of the tiny pair under `trtspec deploy` beside the simulation of `trtspec plan --fleet`.

    python -m tests.perf.fleet [--paced] [--arms drafts plain] [--seeds 0 1 2] [--seconds 30] [--use 0.6]

Both replicas are on this machine, one engine thread each, and a client sends each request to the one that
has fewer. First the same client measures them as `trtspec bench --streams` does, both at once, since they
share the processors. From that alone the simulation is told what turns take. Then requests come at random
times, of random lengths, and the very same are simulated: 95 of 100 first tokens and whole answers, and how
far the simulation is off. What is measured before and after is put together, so that a machine that gets
slower meanwhile counts half. With `--paced` a step takes a GPU's time, in which the processor is free
(`fleet_model.py`): two replicas, their servers and the client are more than two processors can do at once,
and whoever waits for one of them waits for no engine. JSON on stdout, the bars on stderr; the exit status is
1 where one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tests.perf.bar import Bar
from tests.perf.load import DEADLINE_S, HERE, TINY, Texts
from tests.perf.pair import machine, run_build
from tests.ports import free_ports
from trtspec.capacity.demand import Demand, SimulatedRequest, jobs, lognormal
from trtspec.capacity.measured import MeasuredLatency, of_levels
from trtspec.capacity.simulation import Setup, simulate
from trtspec.capacity.steady import pace
from trtspec.capacity.tempo import Replica, Turn
from trtspec.client.endpoint import Api, Endpoint, EndpointRequest, TimedAnswer
from trtspec.client.finding import find
from trtspec.client.scrape import Scrape, parse, read
from trtspec.measure.bench.inside import Meanwhile
from trtspec.measure.bench.result import Arms, Inside, LoadResult, OfferedLoad, Percentiles, Targets
from trtspec.measure.bench.sample import Block, RequestSample
from trtspec.measure.bench.statistics import percentiles
from trtspec.measure.bench.summary import figures
from trtspec.measure.bench.traffic import Manner, closed_loop, open_loop
from trtspec.measure.workloads.workload import Prompt

PLACES, REPLICAS, PATIENCE_S = 16, 2, 120.0
STREAMS = (1, 2, 4, 8, 16)
DRAFTS = {"drafts": 4, "plain": 0}
LENGTHS = lognormal(40, 40, 0.4)
SIMULATED = 9
"""How many seeds the median of which is compared: drafts are accepted by chance."""
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


class Balanced(Endpoint):
    """Several servers as one: a question goes to the one that has the fewest, of several the next in turn."""

    api: Api = "triton"
    plain_per_request = True

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints, self._present, self._next = endpoints, [0] * len(endpoints), 0
        self.url, self.model = endpoints[0].url, endpoints[0].model

    async def ask(self, question: EndpointRequest) -> TimedAnswer:
        self._next += 1
        order = range(self._next, self._next + len(self._endpoints))
        number = min((one % len(self._endpoints) for one in order), key=lambda one: self._present[one])
        self._present[number] += 1
        try:
            return await self._endpoints[number].ask(question)
        finally:
            self._present[number] -= 1

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
        options, balanced = self._options, Balanced(self._endpoints)
        demand = Demand(rate(tempo(found), options.use), LENGTHS, options.burstiness)
        for seed in options.seeds:
            asked = jobs(demand, options.seconds, seed)
            times = [job.arrival for job in asked]
            block = await open_loop(balanced, prompts(self._texts, asked), times, manner(DRAFTS[arm]))
            found.append(await self._levels(arm))
            runs.append(compared(seed, demand, asked, block, tempo(found[-2:])))
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
        asked = [SimulatedRequest(0.0, *pairs[(37 * number) % len(pairs)]) for number in range(count)]
        return await asyncio.gather(
            *(
                closed_loop(endpoint, prompts(self._texts, asked), streams, manner(DRAFTS[arm]))
                for endpoint in self._endpoints
            )
        )


def tempo(found: Sequence[Sequence[LoadResult]]) -> MeasuredLatency:
    """Returns the mean of what several rounds of the levels have measured."""
    each = [of_levels(levels, has_drafts=True) for levels in found]
    whole = [one for one in each if one]
    assert len(whole) == len(found)
    points = tuple(_mean(points) for points in zip(*(one.points for one in whole), strict=True))
    return MeasuredLatency(points, statistics.fmean(one.prompt_token_s for one in whole))


def _mean(points: Sequence[tuple[int, Turn]]) -> tuple[int, Turn]:
    seconds = statistics.fmean(turn.seconds for _, turn in points)
    drafting_s = statistics.fmean(turn.drafting_s for _, turn in points)
    return points[0][0], replace(points[0][1], seconds=seconds, drafting_s=drafting_s)


def rate(measured: MeasuredLatency, use: float) -> float:
    return use * REPLICAS * pace(_replica(measured), LENGTHS).most


def _replica(measured: MeasuredLatency) -> Replica:
    return Replica(measured, PLACES, None, 0, 256, 1)


def prompts(texts: Texts, asked: Sequence[SimulatedRequest]) -> list[Prompt]:
    return [
        Prompt(str(number), (texts.one(job.input),), max_tokens=job.output)
        for number, job in enumerate(asked)
    ]


def manner(num_draft_tokens: int) -> Manner:
    return Manner(1, 0.0, 0, True, num_draft_tokens, None, _whole)


def _whole(sample: RequestSample, question: EndpointRequest, text: str) -> None:
    if sample.error is not None or sample.output_tokens != question.max_tokens:
        raise SystemExit(f"no whole answer: {sample}")


def compared(
    seed: int, demand: Demand, asked: Sequence[SimulatedRequest], block: Block, measured: MeasuredLatency
) -> dict[str, Any]:
    setup = Setup(_replica(measured), REPLICAS, "least_requests")
    outcomes = [simulate(setup, asked, number) for number in range(SIMULATED)]
    first = percentiles([one.time_to_first_token or 0.0 for one in block.samples])
    whole = percentiles([one.end_to_end for one in block.samples])
    assert first is not None
    assert whole is not None
    firsts = [percentiles([each.time_to_first_token for each in one.done]) for one in outcomes]
    wholes = [percentiles([each.end_to_end for each in one.done]) for one in outcomes]
    simulated_first, simulated_whole = _middle(firsts), _middle(wholes)
    told = {
        "seed": seed,
        "requests": len(asked),
        "rate": round(demand.rate, 2),
        "load": [round(one, 1) for one in os.getloadavg()],
        "turn_ms": {str(count): round(turn.seconds * 1e3, 2) for count, turn in measured.points},
        "drafting_ms": {str(count): round(turn.drafting_s * 1e3, 2) for count, turn in measured.points},
        "prompt_token_ms": round(measured.prompt_token_s * 1e3, 3),
        "first_token_p95_s": {"real": round(first.p95, 4), "simulated": round(simulated_first, 4)},
        "end_to_end_p95_s": {"real": round(whole.p95, 4), "simulated": round(simulated_whole, 4)},
        "p50_s": {
            "first token, real": round(first.p50, 4),
            "simulated": round(_median(firsts), 4),
            "end to end, real": round(whole.p50, 4),
            "simulated, end to end": round(_median(wholes), 4),
        },
        "off": {
            "first token, p95": round(abs(simulated_first / first.p95 - 1), 3),
            "end to end, p95": round(abs(simulated_whole / whole.p95 - 1), 3),
        },
    }
    print(told, file=sys.stderr)
    return told


def _middle(found: Sequence[Percentiles | None]) -> float:
    return statistics.median(one.p95 for one in found if one)


def _median(found: Sequence[Percentiles | None]) -> float:
    return statistics.median(one.p50 for one in found if one)


if __name__ == "__main__":
    sys.exit(main())
