"""What a server holds while it serves, and what it leaves behind."""

from __future__ import annotations

import asyncio
import signal
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.chaos.server import Process, Server, until

GROWTH = 0.02
"""Of the memory of a process in the second half of a run."""
EVERY_S = 0.5
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

    def memory(self) -> dict[str, dict[str, float]]:
        """Megabytes, and the most threads, of each process at the beginning and the end of the half."""
        part = max(1, len(self.samples) // 8)
        first, last = (self._by_name(samples) for samples in (self.samples[:part], self.samples[-part:]))
        return {
            name: {
                "mb_first": round(_mb(first[name]), 1),
                "mb_last": round(_mb(last[name]), 1),
                "threads_first": max(process.threads for process in first[name]),
                "threads_last": max(process.threads for process in last[name]),
            }
            for name in first.keys() & last.keys()
        }

    def violations(self) -> list[str]:
        found = []
        for name, seen in self.memory().items():
            if seen["mb_last"] > (1 + GROWTH) * seen["mb_first"]:
                found.append(f"{name} has grown from {seen['mb_first']} to {seen['mb_last']} MB")
            if seen["threads_last"] > seen["threads_first"]:
                found.append(f"{name} has {seen['threads_last']} threads, {seen['threads_first']} before")
        return found

    @staticmethod
    def _by_name(samples: list[list[Process]]) -> dict[str, list[Process]]:
        names = {process.name for sample in samples for process in sample}
        return {
            name: [process for sample in samples for process in sample if process.name == name]
            for name in names
        }


def _mb(processes: list[Process]) -> float:
    return statistics.median(process.rss for process in processes) / 1e6


def left_behind(server: Server) -> list[str]:
    """Stops the server, and looks for what should have gone before, with, and after it."""
    found = []
    for gauge in ("num_requests_running", "num_requests_waiting"):
        if not _becomes(lambda gauge=gauge: server.metric(gauge) == 0, IDLE_S):
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
    alive = [process for process in processes if not _becomes(lambda pid=process.pid: _is_gone(pid), 5)]
    found += [f"{process.name} still runs" for process in alive]
    found += [f"{region} is left in /dev/shm" for region in server.regions()]
    return found


def _becomes(happens: Callable[[], bool], seconds: float) -> bool:
    try:
        until(happens, seconds, "")
    except AssertionError:
        return False
    return True


def _is_gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
