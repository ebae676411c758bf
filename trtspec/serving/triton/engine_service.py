"""The service of an engine as its own Triton model, with the loop and the thread that it runs on."""

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
from trtspec.serving.triton.agreement import DepartureTurns
from trtspec.serving.triton.engine_requests import (
    Arrays,
    EngineRequest,
    StopWords,
    is_stop,
    read_engine_request,
    response_arrays,
)
from trtspec.serving.triton.loop import LoopThread
from trtspec.serving.triton.watchdog import BEAT_S, Watchdog

log = logging.getLogger(__name__)


class EngineClient(Protocol):
    """The client of one request, as Triton gives it. It is used on the sending thread alone."""

    def send(self, arrays: Arrays, is_final: bool) -> None: ...

    def fail(self, message: str) -> None:
        """Sends an error as the last response."""

    def has_left(self) -> bool: ...


@dataclass(slots=True)
class EngineJob:
    """A running request."""

    asked: EngineRequest
    request_id: str
    client: EngineClient
    stop_words: StopWords
    is_over: bool = False
    """True once its last response is on its way to the client."""
    is_lost: bool = False
    """True once a response could not be sent, so that its client got an error. For the sending thread."""
    log_probs: list[float] = field(default_factory=list)
    """The log-probabilities of the tokens so far if the request has `return_log_probs`."""


class EngineService:
    """Runs one executor on an asyncio loop in its own thread, and sends responses on another thread.

    `load` is called on the loop; its errors are raised here. `excludes_input` is the default of
    `exclude_input_in_output`. Every `check_s` seconds the service checks whether clients have left. Then it
    calls `update_kv_use`, on the sending thread, with the largest share of the KV cache that requests held
    meanwhile.
    """

    def __init__(
        self,
        load: Callable[[], Executor],
        excludes_input: bool,
        check_s: float,
        watchdog: Watchdog | None = None,
        update_kv_use: Callable[[float], None] | None = None,
    ) -> None:
        self._excludes_input, self._check_s, self._watchdog = excludes_input, check_s, watchdog
        self._update_kv_use = update_kv_use
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
        self._loop.post(self._tick)
        if watchdog:
            self._loop.every(BEAT_S, watchdog.beat)

    def submit(self, arrays: Arrays, request_id: str, client: EngineClient) -> None:
        """Starts a request, or stops those with its id, and returns at once."""
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
        """Cancels running requests, sends the last responses, and frees the engine."""
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
        job.log_probs += [log_prob.value for log_prob in (response.log_probs or [])[: len(tokens)]]
        size, reused = self._executor.limits.tokens_per_block, response.num_reused
        # A block that was reused in part counts, as with NVIDIA's backend.
        blocks = None if size is None or reused is None else -(-reused // size)
        arrays = response_arrays(job.asked, tokens, job.log_probs, response.num_verified, blocks)
        self._sends.submit(self._send_part, job, arrays, job.is_over)
        if job.is_over and not response.is_final:
            self._executor.cancel_request(response.request_id)

    def _tick(self) -> None:
        # An engine after its shutdown reports a failure, which must not end the server.
        if self._is_closing:
            return
        self._sends.submit(_logged, self._cancel_abandoned, dict(self._jobs))
        if self._update_kv_use and (use := self._executor.take_kv_use()) is not None:
            self._sends.submit(_logged, self._update_kv_use, use)
        if self._executor.failure and self._watchdog:
            self._watchdog.give_up(self._executor.failure)
        asyncio.get_running_loop().call_later(self._check_s, self._tick)

    def _give_up(self, client: EngineClient) -> None:
        for number, job in self._jobs.items():
            if job.client is client:
                job.is_over = True
                self._executor.cancel_request(number)

    # On the sending thread.

    def _send(self, client: EngineClient, arrays: Arrays, is_final: bool) -> bool:
        """Returns whether the response was sent; if not, an error is the client's last response."""
        if _logged(client.send, arrays, is_final):
            return True
        # Without a last response the client would wait for ever.
        _logged(client.fail, "a response could not be sent")
        self._loop.post(self._give_up, client)
        return False

    def _send_part(self, job: EngineJob, arrays: Arrays, is_final: bool) -> None:
        # Until the engine has cancelled the request there are more responses, and Triton takes none after an
        # error.
        if not job.is_lost:
            job.is_lost = not self._send(job.client, arrays, is_final)

    def _fail(self, job: EngineJob, message: str) -> None:
        if not job.is_lost:
            _logged(job.client.fail, message)

    def _cancel_abandoned(self, jobs: dict[int, EngineJob]) -> None:
        """Cancels the requests of clients that have left, as far as there is time to ask."""
        for number, is_asked in self._turns.take(jobs):
            job = jobs[number]
            if is_asked and not job.is_over and job.client.has_left():
                self._loop.post(self._executor.cancel_request, number)


def _logged(work: Callable[..., None], *arguments: object) -> bool:
    """Calls `work`, logs any exception, and returns whether there was none."""
    try:
        work(*arguments)
    except Exception:  # One refused response must not end the thread that serves the others.
        log.exception("a response could not be sent")
        return False
    return True
