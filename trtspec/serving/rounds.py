"""The rounds of one completion: a draft and its verification, or a burst of the target alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from trtspec.serving.adaptive.policy import Pace
from trtspec.serving.async_executor import AsyncExecutor
from trtspec.serving.completion import Delta, EndReason
from trtspec.serving.drafters.source import Drafter
from trtspec.serving.executor import FinishReason, Request, Response
from trtspec.serving.state import CompletionState, draft_length
from trtspec.serving.stats import Stats
from trtspec.serving.verification import has_ended, read_verification


class Rounds:
    """Runs the rounds of `state`. Without a `drafter` the target decodes alone."""

    def __init__(
        self,
        state: CompletionState,
        target: AsyncExecutor,
        drafter: Drafter | None,
        pace: Pace,
        stats: Stats,
    ) -> None:
        self._state, self._target, self._drafter, self._pace = state, target, drafter, pace
        self._stats = stats
        # Drafts of one kind have similar acceptance and times: sending logits takes longer.
        sends_logits = not (target.limits.matches_samples or state.sampling.is_greedy)
        self._kind = " with logits" if sends_logits else ""
        self._clock = asyncio.get_running_loop().time
        self._verified_at = 0.0

    async def run(self, deadline: float) -> AsyncGenerator[Delta, None]:
        """Yields what each round or burst adds, until the completion has ended."""
        state, stats, drafter = self._state, self._stats, self._drafter
        while state.end_reason is None:
            begin = self._clock()
            if self._verified_at:
                stats.round_times.overhead += begin - self._verified_at
                self._verified_at = 0.0
            why, length, num_alone = self._next(begin)
            stats.rounds[length] += 1
            if length and drafter:
                yield await self._round(drafter, why, length, begin, deadline)
                continue
            if drafter:
                stats.fallbacks[why] += 1
            if (endless := state.num_endless) > 0:
                alone = state.endless_request(endless)
            else:
                alone = state.request(min(num_alone, state.num_remaining), streaming=True)
            async with aclosing(self._burst(alone, deadline)) as deltas:
                async for delta in deltas:
                    yield delta

    def _next(self, now: float) -> tuple[str, int, int]:
        """Returns the origin and length of the next draft, and the length of the burst if there is none.

        With the length 0 the origin is the reason, one of `FALLBACKS`.
        """
        state, drafter = self._state, self._drafter
        if state.num_endless > 0:
            return "min_tokens", 0, 0
        if drafter is None or not state.num_draft_tokens:
            return (*state.undrafted_for, "num_draft_tokens")[0], 0, state.num_remaining
        if (offer := drafter.offer()) is None:
            return drafter.silence, 0, drafter.pause
        longest = draft_length(state, self._target.limits, offer.room)
        if not longest:
            return "no_room" if state.num_remaining > 1 else "last_token", 0, state.num_remaining
        length = self._pace.choose(offer.origin + self._kind, longest, self._stats.running, now)
        return offer.origin if length else "policy", length, min(self._pace.burst, drafter.pause)

    async def _round(
        self, drafter: Drafter, origin: str, length: int, begin: float, deadline: float
    ) -> Delta:
        """Asks the drafter for a proposal, and the target for its verification.

        If the proposal is empty, the target decodes one token.
        """
        state, stats, pace = self._state, self._stats, self._pace
        request = state.request(length)
        pace.begin(length, begin)
        try:
            draft = await drafter.propose(request, deadline)
            drafted_at = self._clock()
            verification = state.request(len(draft) + 1, draft, request.sampling)
            response = await self._target.answer(verification, deadline)
            ended = has_ended(draft, response)
            counts = read_verification(draft, response.token_ids, ended, response.num_verified)
            now = self._clock()
            pace.verified(origin + self._kind, counts, stats.running, now)
        finally:
            pace.end(length, self._clock())
        if counts.num_verified:
            state.speculation.record(counts.num_verified, counts.num_accepted)
            stats.by_origin[origin].record(counts.num_verified, counts.num_accepted)
            stats.round_times.draft += drafted_at - begin
            stats.round_times.verification += now - drafted_at
            self._verified_at = now
        return self._take(response, EndReason.END_ID if ended else None)

    async def _burst(self, alone: Request, deadline: float) -> AsyncGenerator[Delta, None]:
        state, before, pace = self._state, len(self._state.text), self._pace
        pace.begin(0, self._clock())
        try:
            async with aclosing(self._target.answers(alone, deadline)) as responses:
                async for response in responses:
                    pace.received(len(response.token_ids), self._clock())
                    yield self._take(response, _end_reason(response))
                    if state.end_reason is not None:
                        break
            pace.decoded(len(state.text) - before, self._stats.running)
        finally:
            pace.end(0, self._clock())
        if state.end_reason is None and len(state.text) == before:
            yield self._take(Response(0, [], True), EndReason.END_ID)

    def _take(self, response: Response, end_reason: EndReason | None) -> Delta:
        state, reused = self._state, response.num_reused
        # Later requests find what the first one has computed.
        if reused is not None and state.num_cached_tokens is None and not state.num_output_tokens:
            # A paused request counts its blocks again, and the last token is always computed.
            state.num_cached_tokens = min(reused, state.num_input_tokens - 1)
        delta = state.take(response.token_ids, end_reason, response.log_probs)
        if delta.completion is not None and self._drafter:
            self._drafter.end()
        return delta


def _end_reason(response: Response) -> EndReason | None:
    """Returns `END_ID` if the engine met its end token. The state finds the other reasons itself."""
    return EndReason.END_ID if response.finish_reason is FinishReason.END_ID else None
