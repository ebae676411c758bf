"""Measures each load: warms it up, measures it in alternating blocks, and reports after each pair."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle, islice
from time import perf_counter
from typing import Protocol

from trtspec.base.errors import TrtspecError
from trtspec.client.endpoint import Endpoint, EndpointRequest
from trtspec.client.scrape import Scrape, parse, read
from trtspec.measure.bench.inside import KvReuseShare, Meanwhile, is_idle
from trtspec.measure.bench.machine import GpuMeter
from trtspec.measure.bench.plan import BenchPlan
from trtspec.measure.bench.result import OfferedLoad
from trtspec.measure.bench.sample import ArmName, Block, LoadSamples, RequestSample
from trtspec.measure.bench.traffic import Heard, Manner, Traffic, closed_loop
from trtspec.measure.workloads.workload import Prompt, arrivals

_IDLE_S, _LOOK_S = 3.0, 0.1


@dataclass(frozen=True, slots=True)
class BenchArm:
    """The endpoint of one arm, and the options of its requests."""

    endpoint: Endpoint
    num_draft_tokens: int | None
    """K; None leaves it to the server."""


class BlockListener(Protocol):
    """Is notified of the progress of `measure`."""

    def began(self, load: OfferedLoad, measured: list[LoadSamples]) -> None:
        """Called before each load, with the list of samples, which grows during the load."""

    def warm(self) -> None:
        """Called when the warm-up of a load is over."""

    def heard(self, arm: ArmName, sample: RequestSample, question: EndpointRequest, text: str) -> None:
        """Called after each measured request."""

    def paired(self, measured: list[LoadSamples]) -> None:
        """Called after each pair of blocks, with all samples so far."""


async def measure(
    plan: BenchPlan,
    arms: Mapping[ArmName, BenchArm],
    traffic: Traffic,
    metrics_url: str | None,
    listener: BlockListener,
) -> list[LoadSamples]:
    """Returns the samples of each load. If it is cancelled, `listener` has the samples so far."""
    measured: list[LoadSamples] = []
    prompts = cycle(plan.workload.prompts)  # Each load gets other prompts than the one before.
    async with GpuMeter() as meter:
        for number, load in enumerate(plan.loads):
            level = LoadSamples(load)
            measured.append(level)
            listener.began(load, measured)
            run = _Level(plan, arms, traffic, metrics_url, listener, meter, number)
            await run.run(level, prompts, measured)
    return measured


@dataclass(frozen=True, slots=True)
class _Level:
    """Measures one load."""

    _plan: BenchPlan
    _arms: Mapping[ArmName, BenchArm]
    _traffic: Traffic
    _metrics_url: str | None
    _listener: BlockListener
    _meter: GpuMeter
    _number: int

    async def run(self, level: LoadSamples, prompts: Iterator[Prompt], measured: list[LoadSamples]) -> None:
        plan, load = self._plan, level.load
        if warm_up := list(islice(prompts, plan.warm_up_of(load))):
            for name in plan.arms:
                streams = math.ceil(load.value) if load.kind == "streams" else len(warm_up)
                manner = self._manner(name, -1, _unheard)
                await closed_loop(self._arms[name].endpoint, warm_up, streams, manner)
        self._listener.warm()
        spans: dict[ArmName, list[tuple[float, float]]] = {name: [] for name in plan.arms}
        before = seen = await self._look()
        for number in range(plan.pairs):
            asked = list(islice(prompts, plan.prompts_per_block(load)))
            pair: dict[ArmName, Block] = {}
            level.broken_off.clear()
            for name in plan.order(number):
                begin = perf_counter()
                pair[name] = await self._block(level, name, number, asked)
                spans[name].append((begin, perf_counter()))
                if before:
                    last, seen = seen, await self._look()
                    if last and seen:
                        reuse = Meanwhile(last, seen).kv_reuse
                        level.kv_reuse[name] = level.kv_reuse.get(name, KvReuseShare()) + reuse
            level.broken_off.clear()
            level.pairs.append(pair)
            level.gpu_use = {name: self._meter.use(own) for name, own in spans.items()}
            if before and seen:
                level.meanwhile = Meanwhile(before, seen)
            self._listener.paired(measured)

    async def _block(self, level: LoadSamples, name: ArmName, pair: int, asked: list[Prompt]) -> Block:
        endpoint, load = self._arms[name].endpoint, level.load

        def heard(sample: RequestSample, question: EndpointRequest, text: str) -> None:
            level.broken_off.append((name, sample))
            self._listener.heard(name, sample, question, text)

        manner = self._manner(name, pair, heard)
        times: list[float] = []
        if load.kind == "rate":
            # Both arms of a pair have the same times.
            seed = self._plan.seed + 1000 * self._number + pair
            times = arrivals(load.value, len(asked), self._plan.burstiness, seed)
        return await self._traffic.block(endpoint, asked, load, times, manner)

    def _manner(self, name: ArmName, pair: int, heard: Heard) -> Manner:
        """Returns the request options of a block; each block has its own tenant, so it finds no answers of
        another."""
        of, tenant = self._plan, f"bench-{self._number}-{pair}-{name}"
        k = self._arms[name].num_draft_tokens
        return Manner(of.max_tokens, of.temperature, of.seed, of.ignore_eos, k, tenant, heard)

    async def _look(self) -> Scrape | None:
        """Returns the server's metrics once no request is running; None if it has no metrics."""
        if self._metrics_url is None:
            return None
        deadline = perf_counter() + _IDLE_S
        while True:
            try:
                text = await asyncio.to_thread(read, self._metrics_url)
            except TrtspecError:
                return None
            scrape = parse(text, perf_counter())
            if is_idle(scrape) or perf_counter() > deadline:
                return scrape
            await asyncio.sleep(_LOOK_S)


def _unheard(sample: RequestSample, question: EndpointRequest, text: str) -> None:
    """Ignores a sample: the requests of the warm-up are not counted."""
