"""An engine that breaks its contract now and then, each time in a way of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from enum import Enum

from tests.fakes.scripted_executor import ScriptedExecutor
from trtspec.serving.executor import Executor, FinishReason, KvReuse, Listener, Request, Response


class Fault(Enum):
    """What becomes of one request."""

    FAILS = "an error at once"
    HANGS = "no answer until it is cancelled"
    NOTHING = "an answer without tokens"
    TOO_FEW = "half of the tokens"
    TOO_MANY = "all tokens twice"
    FOREIGN = "a token in the middle that no vocabulary has"
    NEGATIVE = "a token in the middle that is below zero"


FOREIGN = 10**6
FaultOf = Callable[[Request], Fault | None]


class Unreliable:
    """Honours the contract with `executor`, except where `fault_of` names a fault.

    `struck` holds the requests that met one. `most_at_once` is how many were in flight together.
    """

    def __init__(self, executor: Executor, inner: ScriptedExecutor, fault_of: FaultOf) -> None:
        self._executor, self._inner, self._fault_of = executor, inner, fault_of
        self.limits, self.kv_tokens = executor.limits, executor.kv_tokens
        self.failure: str | None = None
        self.struck: list[tuple[Request, Fault]] = []
        self.most_at_once = 0
        self._held: dict[int, Listener] = {}

    @property
    def in_flight(self) -> int:
        return self._inner.in_flight + len(self._held)

    def take_kv_use(self) -> float | None:
        return self._executor.take_kv_use()

    @property
    def kv_reuse(self) -> KvReuse | None:
        return self._executor.kv_reuse

    @property
    def progress(self) -> int:
        return self._executor.progress

    def enqueue_request(self, request: Request, listener: Listener) -> int:
        fault = self._fault_of(request)
        if fault is not None:
            # The text may grow.
            self.struck.append((replace(request, input_token_ids=tuple(request.input_token_ids)), fault))
        if fault in (Fault.FAILS, Fault.HANGS):
            request_id = -len(self.struck)
            if fault is Fault.HANGS:
                self._held[request_id] = listener
            else:
                _answer(listener, Response(request_id, [], is_final=True, error="out of order"))
        else:
            request_id = self._executor.enqueue_request(request, _spoiled(listener, fault))
        self.most_at_once = max(self.most_at_once, self.in_flight)
        return request_id

    def cancel_request(self, request_id: int) -> None:
        if request_id >= 0:
            self._executor.cancel_request(request_id)
        elif (listener := self._held.pop(request_id, None)) is not None:
            _answer(listener, Response(request_id, [], True, FinishReason.CANCELLED))

    def shutdown(self) -> None:
        for request_id in list(self._held):
            self.cancel_request(request_id)
        self._executor.shutdown()


def _answer(listener: Listener, response: Response) -> None:
    asyncio.get_running_loop().call_soon(listener, response)


def _spoiled(listener: Listener, fault: Fault | None) -> Listener:
    def listen(response: Response) -> None:
        tokens = response.token_ids
        half = len(tokens) // 2
        wrong = {
            Fault.NOTHING: [],
            Fault.TOO_FEW: tokens[:half],
            Fault.TOO_MANY: tokens * 2,
            Fault.FOREIGN: [*tokens[:half], FOREIGN, *tokens[half:]],
            Fault.NEGATIVE: [*tokens[:half], -1, *tokens[half:]],
        }
        listener(replace(response, token_ids=wrong[fault] if fault else tokens))

    return listen
