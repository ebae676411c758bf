"""The machine that `bench` runs on: what it is, and how busy its GPUs are."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from time import perf_counter

from trtspec.measure.bench.result import BenchMachine
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
