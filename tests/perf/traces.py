"""Rounds of the tiny pair as they were, and what its steps cost, for `tail.py` and `coupling.py`."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from tests.perf.pair import heldout
from trtspec.serving.async_executor import AsyncExecutor
from trtspec.serving.executor import Request, SamplingConfig
from trtspec.serving.executors.torch.device_thread import DeviceThread
from trtspec.serving.executors.torch.sampler import log_probs
from trtspec.serving.executors.torch.spans import Span
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.state import at_token
from trtspec.serving.tokenizer import Tokenizer

AT_ONCE = 16
BEHIND = 200
"""The tokens in the cache behind which steps are timed."""


@dataclass(frozen=True)
class Round:
    """The draft's log-probabilities of its tokens, and how many of these were accepted."""

    log_probs: list[float]
    accepted: int


@dataclass(frozen=True)
class Trace:
    """One prompt, what the target said behind it, and the rounds in which it did."""

    prompt: list[int]
    output: list[int]
    rounds: list[Round]


@dataclass(frozen=True)
class StepCosts:
    """Milliseconds of each completion where many run at once.

    `draft` is for each drafted token, `log_prob` for its log-probability, `base` for a step of the target and
    `row` for each row of it.
    """

    draft: float
    log_prob: float
    base: float
    row: float

    def round(self, length: float, rows: float, with_log_probs: bool) -> float:
        """Returns what a round takes that drafts `length` tokens and verifies `rows` rows."""
        drafted = self.draft + (self.log_prob if with_log_probs else 0)
        return length * drafted + self.base + rows * self.row


def traces(build: Path, prompts: int, tokens: int, length: int, sampling: SamplingConfig) -> list[Trace]:
    """Returns what the engines do with rounds of K = `length`, for at least so many tokens of each prompt."""
    tokenizer = Tokenizer.load(build / "tokenizer")
    return asyncio.run(
        _traces(build, [tokenizer.encode(text) for text in heldout(prompts)], tokens, length, sampling)
    )


async def _traces(
    build: Path, prompts: list[list[int]], tokens: int, length: int, sampling: SamplingConfig
) -> list[Trace]:
    device_thread = DeviceThread()
    target, draft = (AsyncExecutor(engine) for engine in _engines(build, device_thread))
    found: list[Trace] = []
    for first in range(0, len(prompts), AT_ONCE):
        jobs = [
            _trace(target, draft, prompt, tokens, length, replace(sampling, seed=number << 32))
            for number, prompt in enumerate(prompts[first : first + AT_ONCE], first)
        ]
        found += await asyncio.gather(*jobs)
    for engine in (target, draft):
        engine.executor.shutdown()
    return found


async def _trace(
    target: AsyncExecutor,
    draft: AsyncExecutor,
    prompt: list[int],
    tokens: int,
    length: int,
    sampling: SamplingConfig,
) -> Trace:
    trace = Trace(prompt, [], [])
    while len(trace.output) < tokens:
        request = Request([*prompt, *trace.output], length, sampling=at_token(sampling, len(trace.output)))
        proposal = await draft.answer(replace(request, return_log_probs=True), math.inf)
        assert proposal.log_probs is not None
        verification = replace(request, max_tokens=length + 1, draft_token_ids=proposal.token_ids)
        answer = await target.answer(verification, math.inf)
        trace.rounds.append(Round([said.value for said in proposal.log_probs], len(answer.token_ids) - 1))
        trace.output.extend(answer.token_ids)
    return trace


def step_costs(build: Path, clients: int) -> StepCosts:
    """Measures steps of `clients` completions at once; the row is the slope between 1 and 9 rows of each."""
    device_thread = DeviceThread()
    target, draft = _engines(build, device_thread)
    one, five, nine = (_step_ms(target, device_thread, clients, rows) for rows in (1, 5, 9))
    drafted = _step_ms(draft, device_thread, clients, 1)
    logits, tokens = torch.randn(clients, draft.limits.vocab_size), [0] * clients
    logged = device_thread.call(lambda: _milliseconds(partial(log_probs, logits, tokens, [0] * len(tokens))))
    for engine in (target, draft):
        engine.shutdown()
    row = (nine - one) / 8
    base = (one + five + nine) / 3 - 5 * row
    return StepCosts(drafted / clients, logged / clients, base / clients, row / clients)


def _engines(build: Path, device_thread: DeviceThread) -> tuple[TorchExecutor, TorchExecutor]:
    target, draft = (
        TorchExecutor(build / role / "engine", device_thread=device_thread) for role in ("target", "draft")
    )
    return target, draft


def _step_ms(engine: TorchExecutor, device_thread: DeviceThread, clients: int, rows: int) -> float:
    assert engine._runner is not None
    model = engine._runner._model
    spans = [Span(slot, BEHIND, rows) for slot in range(clients)]
    token_ids = [7 + index % 100 for index in range(rows * clients)]

    @torch.inference_mode()
    def run() -> object:
        return model.forward(token_ids, spans, list(range(len(token_ids)))).argmax(-1).tolist()

    return device_thread.call(lambda: _milliseconds(run))


def _milliseconds(run: Callable[[], object], seconds: float = 2.0) -> float:
    """Returns the 10th percentile of many runs, since a shared machine only ever adds to them."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 20 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 10] * 1e3
