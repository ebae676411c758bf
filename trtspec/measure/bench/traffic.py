"""Sends prompts to a server: in streams that wait for their answers, or at a rate that does not wait."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from trtspec.client.endpoint import AskError, ChatMessage, Endpoint, EndpointRequest, TimedAnswer
from trtspec.measure.bench.result import OfferedLoad
from trtspec.measure.bench.sample import Block, RequestSample
from trtspec.measure.workloads.workload import Prompt

Heard = Callable[[RequestSample, EndpointRequest, str], None]


@dataclass(frozen=True, slots=True)
class Manner:
    """The options of every request; the fields are those of an endpoint's request."""

    max_tokens: int
    temperature: float
    seed: int
    ignore_eos: bool
    num_draft_tokens: int | None
    tenant: str | None
    heard: Heard
    """Called after each request, with its sample, the request, and the text of its answer."""

    def question(self, prompt: Prompt, messages: Sequence[ChatMessage], number: int) -> EndpointRequest:
        return EndpointRequest(
            tuple(messages),
            prompt.max_tokens or self.max_tokens,
            self.num_draft_tokens,
            self.temperature,
            self.seed + number if self.temperature else None,
            self.ignore_eos,
            self.tenant,
        )


class Traffic(Protocol):
    """Sends the prompts of a block."""

    name: str
    """The name of the load generator."""

    async def block(
        self,
        endpoint: Endpoint,
        prompts: Sequence[Prompt],
        load: OfferedLoad,
        times: Sequence[float],
        manner: Manner,
    ) -> Block:
        """Returns the block of a load; at a rate, `times` has the time of each prompt."""


class OwnTraffic:
    """Sends the prompts from this process."""

    name = "trtspec"

    async def block(
        self,
        endpoint: Endpoint,
        prompts: Sequence[Prompt],
        load: OfferedLoad,
        times: Sequence[float],
        manner: Manner,
    ) -> Block:
        if load.kind == "streams":
            return await closed_loop(endpoint, prompts, math.ceil(load.value), manner)
        return await open_loop(endpoint, prompts, times, manner)


async def closed_loop(endpoint: Endpoint, prompts: Sequence[Prompt], streams: int, manner: Manner) -> Block:
    """Sends the prompts in `streams` streams; each takes the next prompt when it has its answer.

    A prompt of several turns stays in its stream, and its later turns contain the answers so far.
    """
    begin, waiting, samples = perf_counter(), list(enumerate(prompts))[::-1], list[RequestSample]()
    ran_out: list[float] = []

    async def stream() -> None:
        while waiting:
            number, prompt = waiting.pop()
            due = perf_counter() - begin
            samples.extend(await _converse(endpoint, prompt, number, begin, due, manner))
        ran_out.append(perf_counter() - begin)

    async with Tasks() as tasks:
        for _ in range(min(streams, len(prompts))):
            tasks.start(stream())
    seconds = perf_counter() - begin
    # With fewer prompts the streams are hardly ever all busy, so the whole block counts.
    return Block(tuple(samples), seconds, ran_out[0] if len(prompts) >= 2 * streams else seconds)


async def open_loop(
    endpoint: Endpoint, prompts: Sequence[Prompt], times: Sequence[float], manner: Manner
) -> Block:
    """Sends each prompt at its time, in seconds since now, whether or not earlier ones are answered.

    Latencies count from that time, even if this program was late or the server did not accept the request. So
    a slow server cannot hide requests that waited for it ("coordinated omission").
    """
    begin, samples = perf_counter(), list[RequestSample]()

    async def ask(number: int, prompt: Prompt, due: float) -> None:
        samples.extend(await _converse(endpoint, prompt, number, begin, due, manner))

    async with Tasks() as tasks:
        for number, (prompt, due) in enumerate(zip(prompts, times, strict=True)):
            await asyncio.sleep(max(0.0, begin + due - perf_counter()))
            tasks.start(ask(number, prompt, due))
        last = perf_counter() - begin
    return Block(tuple(samples), perf_counter() - begin, last)


class Tasks:
    """A group of tasks: at the end of the block all have finished, or all are cancelled because one
    failed."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.append(asyncio.ensure_future(work))

    async def __aenter__(self) -> Tasks:
        return self

    async def __aexit__(self, *failure: object) -> None:
        try:
            if failure[0] is None:
                await asyncio.gather(*self._tasks)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)


async def _converse(
    endpoint: Endpoint, prompt: Prompt, number: int, begin: float, due: float, manner: Manner
) -> list[RequestSample]:
    """Sends one turn after the other, each due when the one before ends; stops after a failed turn."""
    samples: list[RequestSample] = []
    messages: list[ChatMessage] = []
    for turn, said in enumerate(prompt.turns):
        messages.append(ChatMessage("user", said))
        question = manner.question(prompt, messages, number)
        try:
            answer = await endpoint.ask(question)
        except AskError as error:
            ended = perf_counter() - begin
            sample = RequestSample(
                prompt.name,
                prompt.category,
                turn,
                due,
                error.sent - begin,
                ended,
                error=error.kind,
                problem=error.problem,
            )
            manner.heard(sample, question, "")
            return [*samples, sample]
        sample = _sample(prompt, turn, begin, due, answer)
        manner.heard(sample, question, answer.text)
        samples.append(sample)
        messages.append(ChatMessage("assistant", answer.text))
        due = sample.ended
    return samples


def _sample(prompt: Prompt, turn: int, begin: float, due: float, answer: TimedAnswer) -> RequestSample:
    is_counted = answer.num_output_tokens is not None
    return RequestSample(
        prompt.name,
        prompt.category,
        turn,
        due,
        answer.sent - begin,
        answer.ended - begin,
        tuple(time - begin for time in answer.times),
        answer.num_input_tokens or 0,
        answer.num_output_tokens if answer.num_output_tokens is not None else len(answer.times),
        is_counted,
        answer.finish_reason,
        answer.drafts,
    )
