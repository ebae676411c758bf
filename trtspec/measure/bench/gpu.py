"""Reads how busy the GPUs of this machine are: `nvidia-smi` asks NVML twice a second."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from contextlib import suppress
from statistics import fmean
from time import perf_counter

_QUERY = ("--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "500")


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
