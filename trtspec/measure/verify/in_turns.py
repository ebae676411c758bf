"""Verifies a build that another engine's server serves, by two servers that run alternately: with drafts and
without.

One of them fills the GPU, so only the one that is asked runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from trtspec.base.errors import UnavailableError
from trtspec.base.progress import no_progress
from trtspec.deployment.build import DeployedBuild
from trtspec.deployment.deploy import place_of
from trtspec.deployment.options import for_measurement
from trtspec.deployment.place import ServingPlace
from trtspec.measure.verify.opening import ServerAddress, deployed
from trtspec.measure.verify.subject import Sides, Subject, SubjectAnswer, SubjectRequest

_LOOK_S = 0.1


class ServerTurns:
    """Runs one server at a time. The two sides must not be asked at once."""

    def __init__(self, end_ids: Collection[int], say: Callable[[str], None]) -> None:
        self._end_ids, self._say = end_ids, say
        self._lock, self._running = asyncio.Lock(), AsyncExitStack()
        self._turn: ServedSide | None = None
        self._subject: Subject | None = None
        self.top_log_probs = 0

    async def subject(self, side: ServedSide) -> Subject:
        """Returns the subject of a side, after starting its server if necessary; raises `ServerError`."""
        async with self._lock:
            if self._turn is not side or self._subject is None:
                await self.end()
                self._turn, self._subject = side, await self._start(side)
            return self._subject

    async def end(self) -> None:
        """Ends the server that runs, if one does."""
        self._subject = None
        await self._running.aclose()

    async def _start(self, side: ServedSide) -> Subject:
        deployment = side.place.deployment
        side.place.prepare(no_progress)
        self._say(f"starting {side.name} (log: {deployment.log})")
        server = self._running.enter_context(side.place.serve())()
        self._running.callback(server.stop)
        while not server.is_ready():
            await asyncio.sleep(_LOOK_S)
        address = ServerAddress(deployment.url, deployment.model_name)
        subject, _ = await deployed(address, self._end_ids)
        self._running.push_async_callback(subject.close)
        self.top_log_probs = subject.top_log_probs
        return subject


class ServedSide:
    """A subject whose server starts at a request, after the other side's server has been stopped."""

    def __init__(self, place: ServingPlace, turns: ServerTurns) -> None:
        self.place, self._turns, deployment = place, turns, place.deployment
        drafts = "without drafts" if deployment.is_plain else "with drafts"
        self.name = f"{deployment.software} {drafts}, {deployment.build}"

    @property
    def top_log_probs(self) -> int:
        return self._turns.top_log_probs

    async def ask(self, question: SubjectRequest) -> SubjectAnswer:
        return await (await self._turns.subject(self)).ask(question)

    async def close(self) -> None:
        await self._turns.end()


@asynccontextmanager
async def in_turns(
    build: DeployedBuild, python: Path | None, end_ids: Collection[int], say: Callable[[str], None]
) -> AsyncIterator[Sides]:
    """Yields both sides of a build; the one without drafts has been started.

    `say` reports each start. Raises `UnavailableError` if this machine has no such server, and `ServerError`
    if one does not become ready.
    """
    if build.is_for_triton:
        problem = "is for Triton's vLLM backend, which does not report the token ids of its answers"
        raise UnavailableError(build.folder, problem, "remove serving.layout, and build it again to verify")
    turns = ServerTurns(end_ids, say)
    with (
        for_measurement(build, python=python, plain=True) as without,
        for_measurement(build, python=python) as drafting,
    ):
        plain, speculative = (ServedSide(place_of(build, asked), turns) for asked in (without, drafting))
        try:
            await turns.subject(plain)
            yield Sides(plain, speculative, plain_k=None)
        finally:
            await turns.end()
