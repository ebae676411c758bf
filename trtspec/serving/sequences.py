"""Several completions of one prompt, each with its own slot and seed."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

from trtspec.serving.awaiting import interleave
from trtspec.serving.completion import CompletionRequest
from trtspec.serving.coordinator import CompletionCall, Coordinator, Deltas, Feature, Stream
from trtspec.serving.errors import RequestError
from trtspec.serving.executor import SamplingConfig
from trtspec.serving.state import NUM_SEEDS

SEQUENCES_APART = 2**40


class Sequences(Feature):
    """Runs the completions of one request.

    The first begins alone. The others hold their slots and wait until the engines have the prompt in their
    KV caches, so that it is computed once. They must not come before the first in the queue, so all are
    tokenized before the first enters it.
    """

    def concerns(self, request: CompletionRequest) -> bool:
        return request.num_return_sequences != 1

    async def around(self, coordinator: Coordinator, stream: Stream, call: CompletionCall) -> Deltas:
        count, most = call.request.num_return_sequences, coordinator.bounds.max_places
        if not 1 <= count <= most:
            allowed = f"1 to {most}, the number of completions that run at once"
            raise RequestError("num_return_sequences", count, allowed)
        known = replace(call.request, prompt=None, prompt_token_ids=(await coordinator.begin(call)).text[:])
        is_cached = asyncio.Event()
        calls = [call]
        for index in range(1, count):
            request = replace(known, sampling=of_sequence(known.sampling, index))
            other = CompletionCall(request, call.arrived, call.deadline)
            other.around_rounds.append(lambda deltas: _after(is_cached, deltas))
            await coordinator.begin(other)
            calls.append(other)
            await asyncio.sleep(0)  # Other requests get their rounds meanwhile.

        async def run(index: int) -> Deltas:
            async with aclosing(stream(calls[index])) as deltas:
                async for delta in deltas:
                    yield replace(delta, sequence_index=index)

        async with aclosing(interleave([run(index) for index in range(count)])) as deltas:
            async for delta in deltas:
                is_cached.set()
                yield delta


async def _after(event: asyncio.Event, deltas: Deltas) -> Deltas:
    async with aclosing(deltas):
        await event.wait()
        async for delta in deltas:
            yield delta


def of_sequence(sampling: SamplingConfig, index: int) -> SamplingConfig:
    """Returns the options of completion `index`, from 0, of several of one prompt.

    The seeds are 2^40 apart. TensorRT-LLM's are 1 apart (`createChildRequest` of
    `batch_manager/llmRequest.cpp`), but so are the seeds of one completion's tokens here: the next
    completion would draw the same numbers, a token later.
    """
    if sampling.seed is None:
        return sampling
    return replace(sampling, seed=(sampling.seed + index * SEQUENCES_APART) % NUM_SEEDS)
