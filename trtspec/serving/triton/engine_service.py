"""The service of an engine that is a Triton model of its own: the loop that it runs on."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from trtspec.serving.async_executor import AsyncExecutor
from trtspec.serving.errors import RequestError
from trtspec.serving.executor import Executor, Request, Response
from trtspec.serving.triton.departures import DepartureTurns
from trtspec.serving.triton.engine_requests import (
    Arrays,
    EngineRequest,
    is_stop,
    read_engine_request,
    response_arrays,
)
from trtspec.serving.triton.loop import LoopThread
from trtspec.serving.triton.stop_words import StopWords
from trtspec.serving.triton.watchdog import BEAT_S, Watchdog

log = logging.getLogger(__name__)


class EngineClient(Protocol):
    """The client of one request, as Triton gives it; used on the sending thread alone."""

    def send(self, arrays: Arrays, is_final: bool) -> None: ...

    def fail(self, message: str) -> None:
        """Sends an error as the last response."""
        ...

    def has_left(self) -> bool: ...


@dataclass(slots=True)
class EngineJob:
    """A request in flight."""

    asked: EngineRequest
    request_id: str
    client: EngineClient
    stop_words: StopWords
    is_over: bool = False
    """True once its client has had the last response."""
    is_lost: bool = False
    """True once a response could not be sent, and an error was the last one; of the sending thread."""
    log_probs: list[float] = field(default_factory=list)
    """Those of the tokens so far, if they were asked for."""


class EngineService:
    """Runs one executor on an asyncio loop in a thread of its own, and sends responses on another thread.

    `load` is called on the loop; what it raises is raised here. `excludes_input` is the default of
    `exclude_input_in_output`. Every `check_s` seconds the service asks whether clients have left, and calls
    `tell_kv_use`, on the sending thread, with the largest share of the KV cache that requests held meanwhile.
    """

    def __init__(
        self,
        load: Callable[[], Executor],
        excludes_input: bool,
        check_s: float,
        watchdog: Watchdog | None = None,
        tell_kv_use: Callable[[float], None] | None = None,
    ) -> None:
        self._excludes_input, self._check_s, self._watchdog = excludes_input, check_s, watchdog
        self._tell_kv_use = tell_kv_use
        self._jobs: dict[int, EngineJob] = {}
        self._turns: DepartureTurns[int] = DepartureTurns()
        self._is_closing = False
        self._loop = LoopThread("trtspec-engine")
        try:
            self._executor = self._loop.call(load)
            # The first use of an engine is slow.
            self._loop.run(AsyncExecutor(self._executor).answer(Request([0], max_tokens=8), math.inf))
        except BaseException:
            self._loop.end()
            raise
        self._sends = ThreadPoolExecutor(1, "trtspec-sender")
        self._loop.post(self._look_around)
        if watchdog:
            self._loop.every(BEAT_S, watchdog.beat)

    def submit(self, arrays: Arrays, request_id: str, client: EngineClient) -> None:
        """Starts a request, or stops those with its id, and returns immediately."""
        if is_stop(arrays):
            self._loop.post(self._stop, request_id)
            self._sends.submit(self._send, client, {}, True)
            return
        try:
            asked = read_engine_request(arrays, self._excludes_input)
        except RequestError as error:
            self._sends.submit(_logged, client.fail, str(error))
        else:
            self._loop.post(self._begin, EngineJob(asked, request_id, client, StopWords(asked.stop_words)))

    def close(self) -> None:
        """Cancels what still runs, sends the last responses, and frees the engine."""
        self._is_closing = True
        self._loop.call(self._executor.shutdown)
        self._loop.end()
        self._sends.shutdown()

    # On the loop.

    def _begin(self, job: EngineJob) -> None:
        number = self._executor.enqueue_request(job.asked.request, lambda response: self._hear(job, response))
        self._jobs[number] = job

    def _stop(self, request_id: str) -> None:
        for number, job in list(self._jobs.items()):
            if request_id and job.request_id == request_id:
                self._executor.cancel_request(number)

    def _hear(self, job: EngineJob, response: Response) -> None:
        if response.is_final:
            del self._jobs[response.request_id]
        if job.is_over:
            return
        if response.error is not None:
            job.is_over = True
            self._sends.submit(self._fail, job, response.error)
            return
        tokens = job.stop_words.take(response.token_ids)
        job.is_over = response.is_final or job.stop_words.found
        job.log_probs += [said.value for said in (response.log_probs or [])[: len(tokens)]]
        arrays = response_arrays(job.asked, tokens, job.log_probs, response.num_verified)
        self._sends.submit(self._send_part, job, arrays, job.is_over)
        if job.is_over and not response.is_final:
            self._executor.cancel_request(response.request_id)

    def _look_around(self) -> None:
        # An engine that is shut down says that it has failed, which is no reason to end the server.
        if self._is_closing:
            return
        self._sends.submit(_logged, self._cancel_abandoned, dict(self._jobs))
        if self._tell_kv_use and (use := self._executor.take_kv_use()) is not None:
            self._sends.submit(_logged, self._tell_kv_use, use)
        if self._executor.failure and self._watchdog:
            self._watchdog.give_up(self._executor.failure)
        asyncio.get_running_loop().call_later(self._check_s, self._look_around)

    def _give_up(self, client: EngineClient) -> None:
        for number, job in self._jobs.items():
            if job.client is client:
                job.is_over = True
                self._executor.cancel_request(number)

    # On the sending thread.

    def _send(self, client: EngineClient, arrays: Arrays, is_final: bool) -> bool:
        """Returns whether it was sent; if not, the client has its last response, an error."""
        if _logged(client.send, arrays, is_final):
            return True
        # Without a last response it would wait for ever.
        _logged(client.fail, "a response could not be sent")
        self._loop.post(self._give_up, client)
        return False

    def _send_part(self, job: EngineJob, arrays: Arrays, is_final: bool) -> None:
        # The engine makes more responses until it is cancelled, and Triton takes none after the last.
        if not job.is_lost:
            job.is_lost = not self._send(job.client, arrays, is_final)

    def _fail(self, job: EngineJob, message: str) -> None:
        if not job.is_lost:
            _logged(job.client.fail, message)

    def _cancel_abandoned(self, jobs: dict[int, EngineJob]) -> None:
        """Asks who has left, in turn, as far as the time goes."""
        for number, is_asked in self._turns.take(jobs):
            job = jobs[number]
            if is_asked and not job.is_over and job.client.has_left():
                self._loop.post(self._executor.cancel_request, number)


def _logged(work: Callable[..., None], *arguments: object) -> bool:
    """Returns whether it was done."""
    try:
        work(*arguments)
    except Exception:  # One refused response must not end the thread that serves the others.
        log.exception("a response could not be sent")
        return False
    return True
