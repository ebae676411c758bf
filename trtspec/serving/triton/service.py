"""The service of the coordinator's model, with the loop and the thread that it runs on."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace

from trtspec.serving.async_executor import AsyncExecutor
from trtspec.serving.completion import NO_END, CompletionRequest
from trtspec.serving.errors import Busy, Cancelled, EngineLoadError, RequestError, ServingError, TimedOut
from trtspec.serving.executor import Request
from trtspec.serving.rollout.rollout import Rollout
from trtspec.serving.rollout.state import LOOK_S, RolloutFile, RolloutReading
from trtspec.serving.stats import Stats
from trtspec.serving.triton.agreement import tells_end
from trtspec.serving.triton.engines import EnginePair
from trtspec.serving.triton.logs import RequestLog, kind_of
from trtspec.serving.triton.loop import LoopThread
from trtspec.serving.triton.outbox import Outbox, RequestClient, Sender
from trtspec.serving.triton.requests import ResponseOptions, explain
from trtspec.serving.triton.responses import Code, Failure, TextChunk
from trtspec.serving.triton.watchdog import BEAT_S, Watchdog

log = logging.getLogger(__name__)

_CANCELLED = Failure("the request was cancelled", Code.CANCELLED)
_DEFECT = Failure("internal error; the server's log has the trace", Code.INTERNAL)
_STOPPING = "the server is stopping"
_LAST_RESPONSES_S = 3.0


class CoordinatorService:
    """Runs the coordinator on an asyncio loop in its own thread, and sends responses on another thread.

    `load` is called on the loop; its errors are raised here. Every `tick_s` seconds the sending thread calls
    `tick` and checks whether clients have left. The loop's beats go to the `watchdog`. It ends the server
    when the engines will serve no request any more and every client has its last response.
    """

    def __init__(
        self,
        load: Callable[[], EnginePair],
        tick: Callable[[Stats], None],
        watchdog: Watchdog | None = None,
        tick_s: float = 0.05,
    ) -> None:
        self._loop = LoopThread("trtspec-loop")
        # Each task with the failure that its client gets if the task is cancelled.
        self._tasks: dict[asyncio.Task[None], Failure] = {}
        self._watchdog, self._failed_at = watchdog, 0.0
        try:
            self._pair = self._loop.call(load)
            if self._pair.in_process:
                self._loop.run(_warm_up(self._pair))
            self._coordinator = self._pair.coordinator()
        except BaseException:
            self._loop.end()
            raise
        self._tick = tick
        self._sender = Sender(self._on_tick, tick_s)
        if watchdog:
            self._loop.every(BEAT_S, watchdog.beat)

    def submit(
        self,
        request: CompletionRequest,
        options: ResponseOptions,
        client: RequestClient,
        request_id: str = "",
    ) -> None:
        """Starts a request at once; `client` gets the responses, the log the client's own `request_id`."""
        self._loop.post(self._begin, request, options, client, RequestLog(request_id))

    def refuse(self, client: RequestClient, failure: Failure, request_id: str = "") -> None:
        """Sends the failure, which is the client's fault, as the only response."""
        self._sender.open(client, lambda: None).put(TextChunk(failure=failure))
        self._loop.post(self._note, RequestLog(request_id, failure="invalid_request"))

    def every(self, seconds: float, work: Callable[[], object]) -> None:
        """Schedules calls of `work` on the loop every `seconds`."""
        self._loop.every(seconds, work)

    def follow(self, file: RolloutFile) -> None:
        """Follows the file of a roll-out from now on. Other threads read the file."""

        def take(reading: RolloutReading | None) -> None:
            if reading:
                self._pair.rollout.take(reading)

        def look() -> None:
            looking = asyncio.get_running_loop().run_in_executor(None, file.look)
            looking.add_done_callback(lambda done: None if done.cancelled() else take(done.result()))

        self._loop.call(lambda: take(file.look()))
        self._loop.every(LOOK_S, look)

    def drain(self, grace_s: float) -> None:
        """Refuses new requests, and cancels what runs after `grace_s` seconds; called on the loop."""
        self._coordinator.close(_STOPPING)
        asyncio.get_running_loop().call_later(grace_s, self._cancel_all)

    def close(self) -> None:
        """Cancels running requests, sends the last responses, and frees the engines."""
        self._loop.run(self._end_all())
        self._sender.close()
        self._loop.call(self._pair.shutdown)
        self._loop.end()

    # On the loop.

    def _begin(
        self, request: CompletionRequest, options: ResponseOptions, client: RequestClient, course: RequestLog
    ) -> None:
        # The client may have left already, which the sending thread may notice before there is a task.
        outbox = self._sender.open(client, lambda: self._loop.post(lambda: task.cancel()))
        task = asyncio.get_running_loop().create_task(self._answer(request, options, outbox, course))
        self._tasks[task] = _CANCELLED
        task.add_done_callback(lambda _: self._end(task, outbox, course))

    def _end(self, task: asyncio.Task[None], outbox: Outbox, course: RequestLog) -> None:
        failure = self._tasks.pop(task)
        # `_answer` cannot do this: a task that is cancelled before it starts runs none of it.
        if task.cancelled() and outbox.put(TextChunk(failure=failure)):
            course.failure = "cancelled"
        self._note(course)

    def _note(self, course: RequestLog) -> None:
        """Counts and logs a finished request."""
        if course.failure:
            self._coordinator.stats.failures[course.failure] += 1
        course.write()

    async def _answer(
        self, request: CompletionRequest, options: ResponseOptions, outbox: Outbox, course: RequestLog
    ) -> None:
        try:
            unsent: dict[int, TextChunk | None] = {}
            left, first = request.num_return_sequences, TextChunk(options.prefix)
            async with aclosing(self._coordinator.stream(request)) as deltas:
                async for delta in deltas:
                    course.add(delta)
                    index = delta.sequence_index
                    left -= delta.completion is not None
                    probs = delta.log_probs or []
                    # Without a stream the chunk grows with each round, which would copy all ids each time.
                    ids = delta.token_ids if probs or options.output_ids else []
                    chunk = TextChunk(
                        delta.text, delta.completion, None, probs, ids, index, left, delta.prompt
                    )
                    if (before := unsent.get(index, first)) is not None:
                        chunk = before.followed_by(chunk)
                    if is_sent := delta.completion is not None or (options.stream and bool(chunk.text)):
                        outbox.put(chunk)
                    unsent[index] = None if is_sent else chunk
        except ServingError as error:
            course.failure = kind_of(error)
            outbox.put(TextChunk(failure=_failure(error)))
        except Exception:
            course.failure = "internal"
            log.exception("a request failed", extra={"fields": {"request_id": course.request_id}})
            outbox.put(TextChunk(failure=_DEFECT))

    def _cancel_all(self) -> None:
        for task in self._tasks:
            self._tasks[task] = Failure(f"{_STOPPING}, and the request was cancelled", Code.UNAVAILABLE)
            task.cancel()

    async def _end_all(self) -> None:
        self._coordinator.close(_STOPPING)
        self._cancel_all()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # On the sending thread.

    def _on_tick(self) -> None:
        self._tick(self._coordinator.stats)
        failure = self._coordinator.failure
        if failure is None:
            return
        if not self._failed_at:
            self._failed_at = time.monotonic()
            log.critical("%s", failure)
            self._loop.post(self._coordinator.close, failure)
        elif self._watchdog and (
            not self._sender.has_clients or time.monotonic() > self._failed_at + _LAST_RESPONSES_S
        ):
            self._watchdog.give_up(failure)


def _failure(error: ServingError) -> Failure:
    if isinstance(error, RequestError):
        return Failure(explain(error), Code.INVALID_ARG)
    if isinstance(error, Cancelled):
        return Failure(str(error), Code.CANCELLED)
    is_passing = isinstance(error, (Busy, TimedOut)) or tells_end(str(error))
    return Failure(str(error), Code.UNAVAILABLE if is_passing else Code.INTERNAL)


async def _warm_up(pair: EnginePair) -> None:
    """Runs a request on each engine, since the first is slow; raises `EngineLoadError` if one fails."""
    for name, executor in (("draft", pair.draft), ("target", pair.target)):
        if executor is not None:
            try:
                await AsyncExecutor(executor).answer(Request([0], max_tokens=4), math.inf)
            except ServingError as error:
                raise EngineLoadError(f"the {name} engine", f"cannot run: {error}") from error
    await (
        replace(pair, rollout=Rollout())
        .coordinator()
        .complete(CompletionRequest(prompt_token_ids=[0], max_tokens=8, end_id=NO_END))
    )
