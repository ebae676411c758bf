"""What a server holds while it serves, and what it leaves behind."""

from __future__ import annotations

import asyncio
import signal
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from tests.chaos.server import Process, Server, until

GROWTH = 0.02
"""Of memory in the second half of a run."""
SCRAPS_MB = 2.0
"""What an allocator may keep beside that of one process, which is much for tritonserver's 45 MB."""
POOL = 4
"""Threads that a pool may still start, which it does as late as it can."""
EVERY_S = 0.5
PARTS = 8
IDLE_S = 30.0


@dataclass
class Sampler:
    """Looks at the server's processes now and then; `samples` are of the second half alone."""

    server: Server
    samples: list[list[Process]] = field(default_factory=list)

    async def sample(self, progress: Callable[[], float]) -> None:
        while True:
            if progress() >= 0.5:
                self.samples.append(await asyncio.to_thread(self.server.processes))
            await asyncio.sleep(EVERY_S)

    def seen(self) -> dict[str, dict[str, list[float]]]:
        """Of each process: megabytes, the median of each part of the samples, and its most threads."""
        found: dict[str, dict[str, list[float]]] = {}
        for part in self._parts():
            for name in sorted({process.name for process in part}):
                of_name = [process for process in part if process.name == name]
                seen = found.setdefault(name, {"mb": [], "threads": []})
                seen["mb"].append(round(statistics.median(process.rss for process in of_name) / 1e6, 1))
                seen["threads"].append(max(process.threads for process in of_name))
        return found

    def violations(self) -> list[str]:
        found, seen_of_each = [], self.seen()
        total = [
            round(sum(mb), 1) for mb in zip(*(seen["mb"] for seen in seen_of_each.values()), strict=False)
        ]
        if total[-1] > (1 + GROWTH) * total[0]:
            found.append(f"the server has grown: {total} MB")
        for name, seen in seen_of_each.items():
            if seen["mb"][-1] > seen["mb"][0] + max(GROWTH * seen["mb"][0], SCRAPS_MB):
                found.append(f"{name} has grown: {seen['mb']} MB")
            if seen["threads"][-1] > seen["threads"][0] + POOL:
                found.append(f"{name} has more threads: {seen['threads']}")
        return found

    def _parts(self) -> list[list[Process]]:
        size = -(-len(self.samples) // PARTS)
        return [
            [process for sample in self.samples[begin : begin + size] for process in sample]
            for begin in range(0, len(self.samples), size or 1)
        ]


def left_behind(server: Server) -> list[str]:
    """Stops the server, and looks for what should have gone before, with, and after it."""
    found = []
    for gauge in ("num_requests_running", "num_requests_waiting"):
        if not _becomes(partial(_is_zero, server, gauge), IDLE_S):
            found.append(f"{gauge} is {server.metric(gauge):g} when nobody asks anything")
    if not _becomes(lambda: server.told()["tasks"] == 0, IDLE_S):
        found.append(f"{server.told()['tasks']} tasks run when nobody asks anything")
    processes = server.processes()
    server.process.send_signal(signal.SIGTERM)
    try:
        if status := server.process.wait(IDLE_S):
            found.append(f"deploy ended with status {status}")
    except subprocess.TimeoutExpired:
        found.append(f"deploy did not end in {IDLE_S:g} s")
    time.sleep(0)
    alive = [process for process in processes if not _becomes(partial(_is_gone, process.pid), 5)]
    found += [f"{process.name} still runs" for process in alive]
    found += [f"{region} is left in /dev/shm" for region in server.regions()]
    return found


def _becomes(happens: Callable[[], bool], seconds: float) -> bool:
    try:
        until(happens, seconds, "")
    except AssertionError:
        return False
    return True


def _is_zero(server: Server, gauge: str) -> bool:
    return server.metric(gauge) == 0


def _is_gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
