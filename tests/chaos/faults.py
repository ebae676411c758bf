"""What goes wrong in a chaos run, and when."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.chaos.server import MODEL, START_S, Server
from tests.chaos.verdict import Up

# Ready for one who asks is not yet ready for every connection.
_SETTLED_S = 2.0
_BACK_S = 120.0
_LYING_S = 3.0


MODES = ("fails", "hangs", "lies")
DRAFT = "tensorrt_llm_draft"
KILLS = {
    "killed": (MODEL, signal.SIGKILL),
    "draft killed": (DRAFT, signal.SIGKILL),
    "draft stopped": (DRAFT, signal.SIGSTOP),
}
"""The processes that a kill is of, and its signal."""


@dataclass(frozen=True)
class Fault:
    """`at` is the part of all requests that have been sent when it comes, `what` one of `MODES`, which the
    draft is in for a while, or one of `KILLS`.
    """

    at: float
    what: str


def plan(layout: str, num_draft_faults: int, num_kills: int) -> list[Fault]:
    """Kills come early, so that one server grows up in what is left of the first half, and must not grow in
    the second.
    """
    kinds = ["killed"] if layout == "in_process" else list(KILLS)
    drafts = [
        Fault((number + 0.7) / (num_draft_faults + 1), MODES[number % len(MODES)])
        for number in range(num_draft_faults)
    ]
    kills = [
        Fault(0.15 * (number + 1) / num_kills, kinds[number % len(kinds)]) for number in range(num_kills)
    ]
    return sorted([*drafts, *kills], key=lambda fault: fault.at)


@dataclass
class Conductor:
    """Brings the faults about, one after another; `ups` are the times in which the server served.

    `log` says what came of each, in seconds; `violations` what should not have.
    """

    server: Server
    ups: list[Up] = field(default_factory=list)
    log: list[dict[str, float | str]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    is_up: bool = True
    _since: float = field(default_factory=time.monotonic)

    async def conduct(self, faults: list[Fault], progress: Callable[[], float]) -> None:
        for fault in faults:
            while progress() < fault.at:
                await asyncio.sleep(0.05)
            await (self._kill(fault.what) if fault.what in KILLS else self._draft(fault.what))

    async def up_or(self, seconds: float) -> None:
        """Returns when the server is up, or after so long."""
        deadline = time.monotonic() + seconds
        while not self.is_up and time.monotonic() < deadline:
            await asyncio.sleep(0.2)

    def finish(self) -> None:
        self.ups.append(Up(self._since, float("inf")))

    async def _kill(self, what: str) -> None:
        starts, begin = self.server.starts, time.monotonic()
        self.is_up = False
        self.server.kill(*KILLS[what])
        self.ups.append(Up(self._since, begin))
        await self._until(lambda: self.server.starts > starts, START_S, "the server ready again")
        await asyncio.to_thread(self.server.note_memory)
        self.log.append({"fault": what, "back_s": round(time.monotonic() - begin, 1)})
        await asyncio.sleep(_SETTLED_S)
        self._since, self.is_up = time.monotonic(), True

    async def _draft(self, mode: str) -> None:
        begin = time.monotonic()
        self.server.set_mode(mode)
        if mode == "lies":
            await asyncio.sleep(_LYING_S)
            self.server.set_mode("works")
            self.log.append({"fault": mode})
            return
        await self._until(lambda: not self._is_available(), _BACK_S, f"a draft that {mode} left out")
        left_out = time.monotonic()
        self.server.set_mode("works")
        await self._until(self._is_available, _BACK_S, f"a draft that {mode} no more in use")
        self.log.append(
            {
                "fault": mode,
                "left_out_after_s": round(left_out - begin, 1),
                "back_s": round(time.monotonic() - left_out, 1),
            }
        )

    def _is_available(self) -> bool:
        return self.server.metric("draft_available") == 1

    async def _until(self, happens: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not await asyncio.to_thread(happens):
            if time.monotonic() > deadline:
                self.violations.append(f"not in {seconds:g} s: {what}")
                return
            await asyncio.sleep(0.1)
