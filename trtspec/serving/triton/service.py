"""The loop that all requests of the model run on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing

from trtspec.serving.completion import NO_END, CompletionRequest
from trtspec.serving.errors import RequestError, ServingError
from trtspec.serving.stats import Stats
from trtspec.serving.triton.engines import Pair
from trtspec.serving.triton.loop import LoopThread
from trtspec.serving.triton.outbox import Client, Outbox, Sender
from trtspec.serving.triton.requests import Wanted, explain
from trtspec.serving.triton.responses import Chunk, Failure
from trtspec.serving.triton.watchdog import BEAT_S, Watchdog

log = logging.getLogger(__name__)

_CANCELLED = Failure("the request was cancelled", is_clients=False)
_STOPPING = Failure("the server is stopping", is_clients=False, is_retryable=True)
_DEFECT = Failure("an error of the server; its log has the trace", is_clients=False)


class Service:
    """One asyncio loop in a thread of its own, and the thread that sends what it says.

    `load` is called on the loop; what it raises is raised here. `tick` is called on the sending thread every
    `tick_s` seconds, which is also how often clients are asked whether they have left.
    """

    def __init__(
        self,
        load: Callable[[], Pair],
        tick: Callable[[Stats], None],
        watchdog: Watchdog | None = None,
        tick_s: float = 0.05,
    ) -> None:
        self._loop = LoopThread("trtspec-loop")
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        try:
            self._pair = self._loop.call(load)
            if self._pair.in_process:
                self._loop.run(_warm_up(self._pair))
            self._coordinator = self._pair.coordinator()
        except BaseException:
            self._loop.end()
            raise
        self._sender = Sender(lambda: tick(self._coordinator.stats), tick_s)
        if watchdog:
            self._loop.every(BEAT_S, watchdog.beat)

    def submit(self, request: CompletionRequest, wanted: Wanted, client: Client) -> None:
        """Starts a request and returns at once; `client` hears all that comes of it."""
        if self._is_stopping:
            self.refuse(client, _STOPPING)
            return
        self._loop.post(self._begin, request, wanted, client)

    def refuse(self, client: Client, failure: Failure) -> None:
        self._sender.open(client, lambda: None).put(Chunk(failure=failure))

    def every(self, seconds: float, work: Callable[[], object]) -> None:
        """Has it called on the loop, so often."""
        self._loop.every(seconds, work)

    def drain(self, grace_s: float) -> None:
        """Takes in nothing more, and cancels in so many seconds what still runs; called on the loop."""
        self._is_stopping = True
        asyncio.get_running_loop().call_later(grace_s, self._stop_all)

    def close(self) -> None:
        """Cancels what still runs, sends the last words, frees the engines."""
        self._loop.run(self._cancel_all())
        self._sender.close()
        self._loop.call(self._pair.shutdown)
        self._loop.end()

    def _begin(self, request: CompletionRequest, wanted: Wanted, client: Client) -> None:
        # The client may have left already, which the sending thread may notice before there is a task.
        outbox = self._sender.open(client, lambda: self._loop.post(lambda: task.cancel()))
        task = asyncio.get_running_loop().create_task(self._answer(request, wanted, outbox))
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._end(task, outbox))

    def _end(self, task: asyncio.Task[None], outbox: Outbox) -> None:
        self._tasks.discard(task)
        # Not in `_answer`, of which a task that is cancelled early runs nothing.
        if task.cancelled():
            outbox.put(Chunk(failure=_STOPPING if self._is_stopping else _CANCELLED))

    async def _answer(self, request: CompletionRequest, wanted: Wanted, outbox: Outbox) -> None:
        try:
            text = wanted.prefix
            async with aclosing(self._coordinator.stream(request)) as deltas:
                async for delta in deltas:
                    text += delta.text
                    if delta.completion is not None or (wanted.stream and text):
                        outbox.put(Chunk(text, delta.completion))
                        text = ""
        except RequestError as error:
            outbox.put(Chunk(failure=Failure(explain(error), is_clients=True)))
        except ServingError as error:
            outbox.put(Chunk(failure=Failure(str(error), is_clients=False)))
        except Exception:
            log.exception("a request failed")
            outbox.put(Chunk(failure=_DEFECT))

    def _stop_all(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _cancel_all(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _warm_up(pair: Pair) -> None:
    """The first use of an engine is slow; this one counts nowhere, and finds an engine that cannot run."""
    request = CompletionRequest(prompt_token_ids=[0], max_tokens=8, end_id=NO_END)
    await pair.coordinator().complete(request)
