"""An executor whose responses are awaited, for a bounded time, and the liveness of one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from math import isnan

from trtspec.serving.errors import (
    Busy,
    Cancelled,
    EngineFailure,
    EngineTimedOut,
    GuideError,
    NotFinite,
    ServingError,
)
from trtspec.serving.executor import (
    GUIDE_REFUSED,
    GUIDE_WAITS,
    NOT_FINITE,
    Executor,
    FinishReason,
    Request,
    Response,
)


class AsyncExecutor:
    """Turns an executor's responses into awaitables. It is used on the thread of one asyncio loop.

    Every call has a `deadline`, on the loop's clock. `reap` must be called periodically: a call whose
    deadline has passed raises `EngineTimedOut`. A call raises `EngineFailure` with the engine's error,
    `GuideError` or `Busy` if that is about the guide, and `Cancelled` where the engine itself ended the
    request. Cancelling the waiting task cancels the request.
    """

    def __init__(self, executor: Executor) -> None:
        self.executor, self.limits = executor, executor.limits
        self.failures_in_a_row = 0
        self._pending: dict[int, tuple[float, Callable[[EngineFailure], None]]] = {}

    @property
    def is_busy(self) -> bool:
        """True if a call waits for the engine."""
        return bool(self._pending)

    async def answer(self, request: Request, deadline: float) -> Response:
        """Returns the one response of a request that does not stream."""
        heard: asyncio.Future[Response | EngineFailure] = asyncio.get_running_loop().create_future()

        def listen(response: Response | EngineFailure) -> None:
            if not heard.done():
                heard.set_result(response)

        request_id = self.executor.enqueue_request(request, listen)
        self._pending[request_id] = deadline, listen
        try:
            response = await heard
            if isinstance(response, EngineFailure):
                raise response
        except (asyncio.CancelledError, EngineFailure):
            self.executor.cancel_request(request_id)
            raise
        finally:
            del self._pending[request_id]
        return self._checked(response)

    async def answers(self, request: Request, deadline: float) -> AsyncGenerator[Response, None]:
        """Yields all responses of a streaming request. Closing the generator cancels the request too."""
        heard: asyncio.Queue[Response | EngineFailure] = asyncio.Queue()
        request_id = self.executor.enqueue_request(request, heard.put_nowait)
        self._pending[request_id] = deadline, heard.put_nowait
        is_final = False
        try:
            while not is_final:
                response = await heard.get()
                if isinstance(response, EngineFailure):
                    raise response
                is_final = response.is_final
                yield self._checked(response)
        finally:
            del self._pending[request_id]
            if not is_final:
                self.executor.cancel_request(request_id)

    def reap(self, now: float) -> None:
        """Ends every call whose deadline has passed, with `EngineTimedOut`."""
        for deadline, end in list(self._pending.values()):
            if deadline <= now:
                end(EngineTimedOut())

    def fail(self, error: str) -> None:
        """Ends every call with an `EngineFailure`, because the engine will not answer."""
        for _, end in list(self._pending.values()):
            end(EngineFailure(error))

    def _checked(self, response: Response) -> Response:
        if response.error is not None:
            self.failures_in_a_row += 1
            raise _error(response.error)
        if response.log_probs and any(isnan(log_prob.value) for log_prob in response.log_probs):
            raise NotFinite(NOT_FINITE)
        self.failures_in_a_row = 0
        if response.finish_reason is FinishReason.CANCELLED:
            raise Cancelled()
        return response


def _error(said: str) -> ServingError:
    if NOT_FINITE in said:
        return NotFinite(said)
    _, is_refused, problem = said.partition(GUIDE_REFUSED)
    if is_refused:
        return GuideError(problem)
    _, waits, why = said.partition(GUIDE_WAITS)
    return Busy(why) if waits else EngineFailure(said)


class Liveness:
    """Watches an executor's progress, and declares it lost after `timeout_s` seconds without any.

    `look` must be called periodically, with seconds of any one clock.
    """

    def __init__(self, executor: Executor, timeout_s: float) -> None:
        self._executor, self._timeout_s = executor, timeout_s
        self._progress, self._since = -1, 0.0
        self._lost: str | None = None

    @property
    def failure(self) -> str | None:
        """The reason why the executor will not answer any more, in one line; None while it may."""
        return self._lost or self._executor.failure

    def lose(self, why: str) -> None:
        """Declares the executor lost, for good."""
        self._lost = self._lost or why

    def look(self, now: float, is_busy: bool) -> None:
        """Checks the progress, which an executor must make only while it `is_busy` with requests."""
        progress = self._executor.progress
        if not is_busy or progress != self._progress:
            self._progress, self._since = progress, now
        elif now - self._since > self._timeout_s:
            self.lose(f"the target has requests, but has made no progress for {self._timeout_s:g} s")
