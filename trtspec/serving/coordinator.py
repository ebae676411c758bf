"""The loop that runs rounds for many requests at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from trtspec.serving.calls import answer, answers
from trtspec.serving.completion import CompletionRequest, Delta, EndReason
from trtspec.serving.drafter import EngineDrafter
from trtspec.serving.errors import EngineFailure
from trtspec.serving.executor import Executor, FinishReason, Request, Response
from trtspec.serving.intake import begin
from trtspec.serving.outcome import read_verification
from trtspec.serving.policy import draft_length
from trtspec.serving.state import CompletionState
from trtspec.serving.stats import Stats
from trtspec.serving.tokenizer import Tokenizer

log = logging.getLogger(__name__)

LONG_PROMPT = 4096
"""Characters, which take a tokenizer some milliseconds."""


class Coordinator:
    """Completes text with a target and, where there is one, a draft.

    `num_draft_tokens` is the K of a request that names none; None stands for the target's `max_draft_len`.
    All methods are called on the thread of one asyncio loop. `stats` may be read from any thread.
    """

    def __init__(
        self,
        target: Executor,
        draft: Executor | None,
        tokenizer: Tokenizer,
        num_draft_tokens: int | None = None,
    ) -> None:
        self.stats = Stats()
        self._target = target
        self._drafter = EngineDrafter(draft, target.limits.vocab_size) if draft is not None else None
        self._tokenizer = tokenizer
        self._num_draft_tokens = num_draft_tokens

    def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta, None]:
        """A `Delta` for each round; the last one has the `Completion`.

        Iterating raises `RequestError` before anything runs, and `EngineFailure` when the target fails.
        Closing the generator, or cancelling the task that iterates it, cancels what runs on both engines.
        """
        if request.num_draft_tokens is None:
            request = replace(request, num_draft_tokens=self._num_draft_tokens)
        return self._run(request)

    async def complete(self, request: CompletionRequest) -> Delta:
        """The whole completion as one `Delta`; raises as `stream` does."""
        async with aclosing(self.stream(request)) as stream:
            deltas = [delta async for delta in stream]
        text = "".join(delta.text for delta in deltas)
        token_ids = [token_id for delta in deltas for token_id in delta.token_ids]
        return Delta(text, token_ids, deltas[-1].completion)

    async def _run(self, wanted: CompletionRequest) -> AsyncGenerator[Delta, None]:
        """Rounds as long as a draft can help, then the target alone."""
        state = await self._begin(wanted)
        self.stats.active_requests += 1
        try:
            drafter, limits = self._drafter, self._target.limits
            while drafter and (num_draft_tokens := draft_length(state, limits, drafter.limits)):
                request = state.request(num_draft_tokens)
                try:
                    draft = await drafter.propose(request)
                except EngineFailure as failure:
                    self.stats.draft_failures += 1
                    log.warning("the draft failed, so the target goes on alone: %s", failure)
                    break
                yield await self._verify(state, request, draft)

            if state.end_reason is None:
                request = state.request(state.num_remaining, streaming=True)
                async with aclosing(answers(self._target, request)) as responses:
                    async for response in responses:
                        yield state.take(response.token_ids, _end_reason(response))
                        if state.end_reason is not None:
                            break
        finally:
            self.stats.active_requests -= 1

    async def _begin(self, wanted: CompletionRequest) -> CompletionState:
        """A long prompt is tokenized in a thread, so that the others get their rounds meanwhile."""
        work = partial(begin, wanted, self._target.limits, self._tokenizer)
        return await asyncio.to_thread(work) if len(wanted.prompt or "") > LONG_PROMPT else work()

    async def _verify(self, state: CompletionState, request: Request, draft: list[int]) -> Delta:
        """One round's second half: the same request goes to the target, with the draft's proposal.

        An empty proposal (the draft expects the end) makes it ordinary decoding of one token, which reads
        alike.
        """
        verification = replace(request, max_tokens=len(draft) + 1, draft_token_ids=draft)
        response = await answer(self._target, verification)
        if response.finish_reason is FinishReason.CANCELLED:
            return state.take((), EndReason.CANCELLED)
        outcome = read_verification(draft, response.token_ids)
        if draft:
            state.speculation.record(len(draft), outcome.num_accepted)
            self.stats.speculation.record(len(draft), outcome.num_accepted)
        return state.take(response.token_ids, EndReason.END_ID if outcome.ended else None)


def _end_reason(response: Response) -> EndReason | None:
    return EndReason(response.finish_reason.value) if response.is_final else None
