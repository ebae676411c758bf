"""The log-probabilities of a prompt's own tokens, before its completion begins."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from functools import partial

from trtspec.serving.async_executor import AsyncExecutor
from trtspec.serving.completion import CompletionRequest, PromptScores
from trtspec.serving.coordinator import CompletionCall, Coordinator, Deltas, Feature, Stream
from trtspec.serving.errors import RequestError
from trtspec.serving.executor import Executor, LogProb, Request


class PromptLogProbs(Feature):
    """Has the `target` score the prompt once the completion has a slot; the first delta brings the scores.

    The target computes the prompt for them, and the first round finds it in the KV cache.
    """

    def __init__(self, target: Executor) -> None:
        self._target, self._limits = AsyncExecutor(target), target.limits

    def concerns(self, request: CompletionRequest) -> bool:
        return request.prompt_log_probs is not None

    async def around(self, coordinator: Coordinator, stream: Stream, call: CompletionCall) -> Deltas:
        number, most = call.request.prompt_log_probs or 0, self._limits.max_top_log_probs
        if not self._limits.scores_prompts:
            allowed = "left out, since the target engine reports probabilities of answers only"
            raise RequestError("prompt_log_probs", number, allowed)
        if not 0 <= number <= most:
            raise RequestError("prompt_log_probs", number, f"0 to {most}")
        call.around_rounds.append(partial(self._scored, call, number))
        async with aclosing(stream(call)) as deltas:
            async for delta in deltas:
                yield delta

    async def _scored(self, call: CompletionCall, number: int, deltas: Deltas) -> Deltas:
        async with aclosing(deltas):
            assert call.state is not None
            tokens, values = call.state.text[:], list[LogProb]()
            if len(tokens) > 1:
                request = Request(tokens, 1, return_log_probs=True, top_log_probs=number, scores_prompt=True)
                values += (await self._target.answer(request, call.deadline)).log_probs or ()
            scores: PromptScores | None = PromptScores(tokens, values)
            async for delta in deltas:
                yield replace(delta, prompt=scores) if scores else delta
                scores = None

    def reap(self, now: float) -> None:
        self._target.reap(now)
