"""The coordinator of a deployment, with all that a request may use around it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

from trtspec.serving.adaptive.policy import Policy
from trtspec.serving.admission import ServingBounds
from trtspec.serving.awaiting import interleave
from trtspec.serving.completion import CompletionRequest
from trtspec.serving.coordinator import CompletionCall, Coordinator, Deltas, Feature, Stream
from trtspec.serving.drafters.source import DRAFT_MODEL, Drafting, DraftSource
from trtspec.serving.drafters.sources import SourceInputs, make_source
from trtspec.serving.drafters.translation import Dictionary, draw_alike
from trtspec.serving.errors import RequestError
from trtspec.serving.executor import Executor, SamplingConfig
from trtspec.serving.guides.guides import GuidedRequests, Guides
from trtspec.serving.prompt_log_probs import PromptLogProbs
from trtspec.serving.rollout.rollout import Rollout
from trtspec.serving.state import NUM_SEEDS
from trtspec.serving.stats import Stats
from trtspec.serving.tokenizer import Tokenizer

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


def assemble(
    target: Executor,
    draft: Executor | None,
    tokenizer: Tokenizer,
    num_draft_tokens: int | None = None,
    bounds: ServingBounds | None = None,
    drafting: Drafting | None = None,
    policy: Policy = "fixed",
    guides: Guides | None = None,
    rollout: Rollout | None = None,
    draft_tokenizer: Tokenizer | None = None,
) -> Coordinator:
    """Returns the coordinator of a `target` and a source of drafts; raises `EngineLoadError`.

    `drafting` names the source; None is the `draft` engine. Without either the target decodes alone. A draft
    with another vocabulary needs its `draft_tokenizer`. `bounds` None lets as many completions run as the
    target's batch holds. With `guides` a broken guide is refused before anything runs. The requests without
    K of their own have drafts as `rollout` says, which only one coordinator may have.
    """
    bounds = bounds or ServingBounds(target.limits.max_batch_size)
    rollout = rollout or Rollout()
    stats = Stats(bounds.max_places, bounds.max_queue_size, rollout=rollout.stats)
    features: list[Feature] = [GuidedRequests(guides), Sequences(), PromptLogProbs(target)]
    source: DraftSource | None = None
    if draft is not None or drafting is not None:
        inputs = SourceInputs(draft, target.limits.vocab_size, bounds.draft_timeout_s, stats)
        if draft is not None and draft_tokenizer is not None:
            words = Dictionary(tokenizer, draft_tokenizer, target.limits.vocab_size, draft.limits.vocab_size)
            inputs = replace(inputs, dictionary=words, draws_alike=draw_alike(target, draft, words))
        else:
            inputs = replace(inputs, draws_alike=target.limits.matches_samples)
        source = make_source(drafting or DRAFT_MODEL, inputs.engine)
        unseen = replace(inputs, stats=Stats(fallbacks=rollout.stats.shadow_fallbacks))
        rollout.source = make_source(drafting or DRAFT_MODEL, unseen.engine)
        features.insert(0, rollout)
    engines = {"target": target, **({"draft": draft} if draft else {})}
    return Coordinator(engines, source, tokenizer, bounds, stats, num_draft_tokens, policy, features)
