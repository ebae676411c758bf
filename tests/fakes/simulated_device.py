"""A device that two engines share, in virtual time: what steps take is a formula, what models say is drawn.

Steps are made as `DeviceThread`, `TurnOrder` and `Scheduler` make them: all requests of an engine together,
the draft first, prompts in chunks beside what decodes.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from trtspec.serving.executor import FinishReason, Limits, Listener, Request, Response
from trtspec.serving.executors.torch.device_thread import TurnOrder

VOCAB_SIZE = 256


@dataclass(frozen=True)
class Cost:
    """What a step takes, in seconds: itself, for each sequence in it, and for each of their rows."""

    step_s: float
    sequence_s: float
    row_s: float


@dataclass(eq=False)
class Running:
    """A request at work; its text is computed up to `done`, and `said` is what it has generated."""

    request_id: int
    request: Request
    listener: Listener
    done: int
    end: int
    said: list[int] = field(default_factory=list)

    @property
    def missing(self) -> int:
        return self.end + len(self.said) - self.done + len(self.request.draft_token_ids)


class Device:
    """Makes the steps of its engines, one after the other; each takes up to `noise` more or less.

    A step has `max_rows`, as `Scheduler` understands them.
    """

    def __init__(self, seed: int, noise: float, max_rows: int) -> None:
        self.dice, self._noise, self.max_rows = random.Random(seed), noise, max_rows
        self._engines: list[SimulatedEngine] = []
        self._order = TurnOrder(8)
        self._is_at_work = False

    def join(self, engine: SimulatedEngine) -> None:
        self._engines.append(engine)

    def wake(self) -> None:
        """Begins a step once all who were told of the last one have asked for the next."""
        if not self._is_at_work:
            self._is_at_work = True
            asyncio.get_running_loop().call_later(0, self._step)

    def _step(self) -> None:
        turn = self._order.next([bool(engine.running) for engine in self._engines])
        if turn is None:
            self._is_at_work = False
            return
        seconds, answers = self._engines[turn].step()
        asyncio.get_running_loop().call_later(self.seconds(seconds), self._end, answers)

    def seconds(self, usual: float) -> float:
        """Returns what a step takes that takes `usual` seconds on the average."""
        return usual * self.dice.uniform(1 - self._noise, 1 + self._noise)

    def _end(self, answers: Sequence[tuple[Listener, Response]]) -> None:
        for listener, response in answers:
            listener(response)
        # Behind those who wake up for an answer, and those whom they wake up.
        asyncio.get_running_loop().call_later(1e-6, self._step)


class SimulatedEngine:
    """Says random tokens; as a target it agrees with each draft token as often as `agreement()` says."""

    kv_tokens: int | None = None
    failure: str | None = None

    def __init__(self, device: Device, cost: Cost, longest: int, places: int) -> None:
        self.limits = Limits(places, 8192, 8192, max_draft_len=longest, vocab_size=VOCAB_SIZE)
        self.agreement, self.progress = 0.7, 0
        self.running: list[Running] = []
        self._device, self._cost = device, cost
        self._cached: dict[int, tuple[Sequence[int], int]] = {}
        self._ids = itertools.count()
        device.join(self)

    def enqueue_request(self, request: Request, listener: Listener) -> int:
        text, request_id = request.input_token_ids, next(self._ids)
        _, cached = self._cached.get(id(text), (text, 0))
        self.running.append(Running(request_id, request, listener, min(cached, len(text) - 1), len(text)))
        self._device.wake()
        return request_id

    def cancel_request(self, request_id: int) -> None:
        self.running = [each for each in self.running if each.request_id != request_id]

    def take_kv_use(self) -> None: ...

    @property
    def kv_reuse(self) -> None: ...

    def shutdown(self) -> None: ...

    def step(self) -> tuple[float, list[tuple[Listener, Response]]]:
        """Makes one step; returns what it takes and whom to tell what."""
        self.progress += 1
        at_work, rows, answers = sorted(self.running, key=lambda each: each.missing), 0, []
        short = self.limits.max_draft_len + 1
        decoding = sum(each.missing for each in at_work if each.missing <= short)
        most = self._device.max_rows
        budget = max(most - decoding, most // 4, decoding)
        for each in at_work:
            new = each.missing
            if new > short:
                new = min(new, budget)
                budget -= new
            rows += new
            is_ready = new == each.missing
            each.done += new
            if is_ready and (response := self._said(each)):
                answers.append((each.listener, response))
        cost = self._cost
        return cost.step_s + len(at_work) * cost.sequence_s + rows * cost.row_s, answers

    def _alphabet(self, request: Request) -> int:
        """Returns the token id behind those that a text is of."""
        return VOCAB_SIZE - 1

    def _said(self, each: Running) -> Response | None:
        draft, dice = each.request.draft_token_ids, self._device.dice
        accepted = next((i for i in range(len(draft)) if dice.random() >= self.agreement), len(draft))
        new = [*draft[:accepted], dice.randrange(1, self._alphabet(each.request))]
        if accepted < len(draft) and new[-1] == draft[accepted]:
            new[-1] += 1
        each.done -= len(draft) - accepted
        each.said += new
        is_over = bool(draft) or len(each.said) >= each.request.max_tokens
        if is_over:
            self.running.remove(each)
            self._cached[id(each.request.input_token_ids)] = each.request.input_token_ids, each.done
        if not (is_over or each.request.streaming):
            return None
        reason = FinishReason.LENGTH if is_over else FinishReason.NOT_FINISHED
        said = new if each.request.streaming else list(each.said)
        return Response(each.request_id, said, is_over, reason)
