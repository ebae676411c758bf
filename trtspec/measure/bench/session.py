"""Runs a bench against running servers, and writes the results as it goes."""

from __future__ import annotations

import asyncio
import math
import os
import platform
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib.metadata import version
from itertools import cycle, islice
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Literal, Protocol

from trtspec.base.errors import TrtspecError
from trtspec.base.files import remove
from trtspec.client.endpoint import Endpoint, EndpointRequest
from trtspec.client.finding import find, metrics_beside, shown
from trtspec.client.scrape import Scrape, parse, read
from trtspec.measure.bench.plan import BenchPlan
from trtspec.measure.bench.result import (
    BenchedModel,
    BenchedServer,
    BenchMachine,
    BenchResult,
    BenchSettings,
    OfferedLoad,
    WorkloadSummary,
    write,
)
from trtspec.measure.bench.sample import ArmName, Block, LoadSamples, RequestSample, write_samples
from trtspec.measure.bench.server_metrics import KvReuseShare, Meanwhile, is_idle
from trtspec.measure.bench.summary import summary, verdict
from trtspec.measure.bench.traffic import Heard, Manner, Traffic, closed_loop
from trtspec.measure.workloads.workload import Prompt, Recorded, append_recorded, arrivals
from trtspec.pipeline.machine.devices import find_gpus

# nvidia-smi asks NVML twice a second.
_QUERY = ("--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "500")


def this_machine() -> BenchMachine:
    """Returns the facts of this machine for a result, without its name and address."""
    return BenchMachine(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        gpus=tuple(gpu.name for gpu in find_gpus()),
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


class GpuMeter:
    """Collects the share of time in which the GPUs were busy; nothing without a GPU.

    `seen` has each share, 0 to 1, with its time in seconds of `perf_counter`.
    """

    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> GpuMeter:
        if executable := shutil.which("nvidia-smi"):
            self._process = await asyncio.create_subprocess_exec(
                executable, *_QUERY, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
            )
            self._reader = asyncio.create_task(self._read(self._process))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process and self._reader:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            await self._reader

    def use(self, spans: Sequence[tuple[float, float]]) -> float | None:
        """Returns the mean use in these spans of `perf_counter`, 0 to 1; None if nothing was read in them."""
        seen = [share for at, share in self.seen if any(begin <= at <= end for begin, end in spans)]
        return fmean(seen) if seen else None

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        if process.stdout is None:
            return
        async for line in process.stdout:
            # A divided GPU reports "[N/A]".
            with suppress(ValueError):
                self.seen.append((perf_counter(), float(line) / 100))


_IDLE_S, _LOOK_S = 3.0, 0.1


@dataclass(frozen=True, slots=True)
class BenchArm:
    """The endpoint of one arm, and the options of its requests."""

    endpoint: Endpoint
    num_draft_tokens: int | None
    """K; None leaves it to the server."""
    metrics_url: str | None = None
    """The metrics of its server."""


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
            run = _Level(plan, arms, traffic, listener, meter, number)
            await run.run(level, prompts, measured)
    return measured


@dataclass(frozen=True, slots=True)
class _Level:
    """Measures one load."""

    _plan: BenchPlan
    _arms: Mapping[ArmName, BenchArm]
    _traffic: Traffic
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
        seen = {name: await self._look(name) for name in plan.arms}
        before = seen["speculative"]
        for number in range(plan.pairs):
            asked = list(islice(prompts, plan.prompts_per_block(load)))
            pair: dict[ArmName, Block] = {}
            level.broken_off.clear()
            for name in plan.order(number):
                begin = perf_counter()
                pair[name] = await self._block(level, name, number, asked)
                spans[name].append((begin, perf_counter()))
                await self._reckon(level, name, seen)
            level.broken_off.clear()
            level.pairs.append(pair)
            level.gpu_use = {name: self._meter.use(own) for name, own in spans.items()}
            if before and (after := seen["speculative"]):
                level.meanwhile = Meanwhile(before, after)
            self._listener.paired(measured)

    async def _reckon(self, level: LoadSamples, name: ArmName, seen: dict[ArmName, Scrape | None]) -> None:
        """Adds what the server of an arm reused in a block; `seen` has the last look at each arm's server."""
        if (last := seen[name]) is None:
            return
        now = await self._look(name)
        for other, arm in self._arms.items():
            if arm.metrics_url == self._arms[name].metrics_url:
                seen[other] = now
        if now:
            reuse = Meanwhile(last, now).kv_reuse
            level.kv_reuse[name] = level.kv_reuse.get(name, KvReuseShare()) + reuse

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

    async def _look(self, name: ArmName) -> Scrape | None:
        """Returns the metrics of an arm's server once no request is running; None if it has none."""
        if (url := self._arms[name].metrics_url) is None:
            return None
        deadline = perf_counter() + _IDLE_S
        while True:
            try:
                text = await asyncio.to_thread(read, url)
            except TrtspecError:
                return None
            scrape = parse(text, perf_counter())
            if is_idle(scrape) or perf_counter() > deadline:
                return scrape
            await asyncio.sleep(_LOOK_S)


def _unheard(sample: RequestSample, question: EndpointRequest, text: str) -> None:
    """Ignores a sample: the requests of the warm-up are not counted."""


ANSWERS = "answers.jsonl"
_FREE_S, _MOST_SHARE = 5.0, 0.01
"""The time that interim results may take, and beyond that their share of the run's time.

Each is computed from all blocks so far, so with hundreds of pairs they would take ever more time.
"""


@dataclass(frozen=True, slots=True)
class BenchTargets:
    """The servers and the files of a run.

    A key is sent as a bearer token to its own server only, and is never stored.
    """

    url: str
    model_name: str | None
    baseline: str | None
    """The URL of the same engine without drafts, for a server that cannot decode plainly on request."""
    metrics_url: str | None
    timeout_s: float
    folder: Path
    as_csv: bool
    keeps_answers: bool
    model: BenchedModel | None = None
    key: str | None = None
    """The key of the server at `url`."""
    baseline_key: str | None = None
    """The key of the server at `baseline`."""
    baseline_model: str | None = None
    """The name of the model at `baseline`; None for the usual one, or the only one."""
    as_deployed: bool = False
    """True asks no server for plain decoding: each is measured as it is."""
    command: str = ""
    """The command line of this run, without its secrets."""


class Watcher(Protocol):
    """Is notified of the progress of `run`."""

    def began(self, load: OfferedLoad, prompts: int) -> None:
        """Called before each load, with its number of prompts without the warm-up."""

    def warm(self) -> None:
        """Called when the warm-up of a load is over."""

    def heard(self, arm: ArmName, sample: RequestSample) -> None:
        """Called after each measured request."""

    def paired(self, result: BenchResult) -> None:
        """Called after a pair of blocks with the result so far; not after every one if there are many."""


async def run(
    plan: BenchPlan,
    asked: BenchTargets,
    watcher: Callable[[BenchResult, BenchPlan], Watcher],
    traffic: Traffic,
) -> tuple[BenchResult, tuple[Path, ...]]:
    """Measures until the end, or until Ctrl-C or SIGTERM; sets `plan.paired` by the servers it finds.

    Returns the last result, which is partial after Ctrl-C or SIGTERM, and the files that were written. Once
    the servers are found, `watcher` returns the listener. Raises `UnavailableError` if one does not answer.
    """
    async with AsyncExitStack() as stack:

        async def reach(url: str, name: str | None, key: str | None) -> tuple[Endpoint, str | None]:
            found = await find(url, name, chat=plan.chat, timeout_s=asked.timeout_s, key=key)
            stack.push_async_callback(found.endpoint.close)
            return found.endpoint, found.software

        endpoint, software = await reach(asked.url, asked.model_name, asked.key)
        metrics_url = asked.metrics_url or await metrics_beside(endpoint)
        arms: dict[ArmName, BenchArm] = {
            "speculative": BenchArm(endpoint, plan.num_draft_tokens, metrics_url)
        }
        plain_by: Literal["request", "baseline", "none"] = "none"
        if asked.baseline is not None:
            other, _ = await reach(asked.baseline, asked.baseline_model, asked.baseline_key)
            is_asked = other.plain_per_request and not asked.as_deployed
            arms["plain"] = BenchArm(other, 0 if is_asked else None, await metrics_beside(other))
            plain_by = "baseline"
        elif endpoint.plain_per_request and not asked.as_deployed:
            arms["plain"], plain_by = BenchArm(endpoint, 0, metrics_url), "request"
        plan = replace(plan, paired="plain" in arms, chat=plan.chat and endpoint.api == "openai")
        baseline = shown(asked.baseline) if asked.baseline else None
        server = BenchedServer(shown(endpoint.url), endpoint.api, plain_by, baseline, software)
        model = replace(asked.model or BenchedModel(""), name=endpoint.model)
        of = begun(plan, server, model, traffic.name, asked.command)
        keeper = _Keeper(plan, of, asked, watcher(of, plan))
        work = asyncio.ensure_future(measure(plan, arms, traffic, keeper))
        with _ends_on_signals(work), suppress(asyncio.CancelledError):
            await work
        return keeper.end(is_partial=work.cancelled())


def begun(
    plan: BenchPlan, server: BenchedServer, model: BenchedModel, load_generator: str, command: str
) -> BenchResult:
    """Returns the result of a run that has measured nothing yet."""
    of = plan.workload
    workload = WorkloadSummary(of.name, of.source, len(of.prompts), of.categories, of.digest)
    settings = BenchSettings(
        started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        version=version("trtspec"),
        pairs=plan.pairs,
        block_requests=max(map(plan.prompts_per_block, plan.loads)),
        warm_up=max(map(plan.warm_up_of, plan.loads)),
        max_tokens=plan.max_tokens,
        temperature=plan.temperature,
        seed=plan.seed,
        chat=plan.chat,
        confidence=plan.confidence,
        targets=plan.targets,
        load_generator=load_generator,
        num_draft_tokens=plan.num_draft_tokens,
        command=command,
    )
    return BenchResult(server, model, this_machine(), workload, settings, (), verdict(()))


class _Keeper:
    """Writes the result whenever there is more, and forwards all calls to a watcher."""

    def __init__(self, plan: BenchPlan, of: BenchResult, asked: BenchTargets, watcher: Watcher) -> None:
        self._plan, self._of, self._asked, self._watcher = plan, of, asked, watcher
        self._measured: list[LoadSamples] = []
        self._answers: list[Recorded] = []
        self._has_kept = False
        self._begin, self._spent_s = perf_counter(), 0.0

    def began(self, load: OfferedLoad, measured: list[LoadSamples]) -> None:
        self._measured = measured
        prompts = self._plan.pairs * len(self._plan.arms) * self._plan.prompts_per_block(load)
        self._watcher.began(load, prompts)

    def warm(self) -> None:
        self._watcher.warm()

    def heard(self, arm: ArmName, sample: RequestSample, question: EndpointRequest, text: str) -> None:
        if self._asked.keeps_answers and sample.error is None:
            self._answers.append(_recorded(sample, question, text, self._of.model.name))
        self._watcher.heard(arm, sample)

    def paired(self, measured: list[LoadSamples]) -> None:
        begin = perf_counter()
        if self._spent_s > max(_FREE_S, _MOST_SHARE * (begin - self._begin)):
            return
        self._watcher.paired(self._write(is_partial=True))
        self._spent_s += perf_counter() - begin

    def end(self, *, is_partial: bool) -> tuple[BenchResult, tuple[Path, ...]]:
        result = self._write(is_partial=is_partial)
        samples = write_samples(self._measured, self._asked.folder, as_csv=self._asked.as_csv)
        files = [self._asked.folder / "result.json", samples]
        if self._has_kept:
            files.append(self._asked.folder / ANSWERS)
        return result, tuple(files)

    def _write(self, *, is_partial: bool) -> BenchResult:
        server, key = self._of.server, self._asked.key
        # OpenAI's API has no tenants: trtspec's server makes one of each key.
        is_one = server.plain_by == "request" and server.api == "openai" and key is not None
        so_far = self._plan, self._of, self._measured
        result = summary(*so_far, is_partial=is_partial, is_one_tenant=is_one)
        write(result, self._asked.folder)
        file = self._asked.folder / ANSWERS
        if self._asked.keeps_answers and not self._has_kept:
            remove(file)  # These belong to an earlier run, whose result is replaced too.
        if self._answers:
            self._has_kept = True
            append_recorded(file, self._answers)
            self._answers.clear()
        return result


def _recorded(sample: RequestSample, question: EndpointRequest, text: str, model: str) -> Recorded:
    sampling = {"temperature": question.temperature} if question.temperature else {}
    if question.seed is not None:
        sampling["seed"] = question.seed
    return Recorded(
        name=sample.prompt if not sample.turn else f"{sample.prompt}/{sample.turn}",
        category=sample.category,
        prompt=question.text,
        text=text,
        finish_reason="stop" if sample.finish_reason == "stop" else "length",
        model=model,
        sampling=sampling,
    )


@contextmanager
def _ends_on_signals(work: asyncio.Future[list[LoadSamples]]) -> Iterator[None]:
    """Makes the first Ctrl-C or SIGTERM cancel the work; the second one ends the program."""
    loop = asyncio.get_running_loop()
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in previous.items():
            loop.remove_signal_handler(number)
            # The loop puts Python's default in place of what stood there.
            signal.signal(number, handler)

    def end() -> None:
        work.cancel()
        restore()

    for number in previous:
        loop.add_signal_handler(number, end)
    try:
        yield
    finally:
        restore()
