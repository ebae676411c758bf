"""The rounds of one completion: a draft and its verification, or a burst of the target alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from trtspec.serving.async_executor import AsyncExecutor
from trtspec.serving.completion import Delta, EndReason
from trtspec.serving.drafters.source import Drafter
from trtspec.serving.executor import FinishReason, Limits, Request, Response
from trtspec.serving.state import CompletionState
from trtspec.serving.stats import NO_PROPOSAL, Stats
from trtspec.serving.text import common_prefix


class Rounds:
    """Runs the rounds of `state`. Without a `drafter` the target decodes alone."""

    def __init__(
        self,
        state: CompletionState,
        target: AsyncExecutor,
        drafter: Drafter | None,
        lengths: DraftLengths,
        stats: Stats,
    ) -> None:
        self._state, self._target, self._drafter, self._lengths = state, target, drafter, lengths
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
                if state.max_draft_len:
                    state.fallbacks[why] += 1
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
        if drafter is None or not state.max_draft_len:
            return (*state.undrafted_for, "num_draft_tokens")[0], 0, state.num_remaining
        if (offer := drafter.offer()) is None:
            return drafter.silence, 0, drafter.pause
        longest = draft_length(state, self._target.limits, offer.room)
        if not longest:
            return "no_room" if state.num_remaining > 1 else "last_token", 0, state.num_remaining
        length = self._lengths.choose(offer.origin + self._kind, longest, self._stats.running, now)
        return offer.origin if length else "policy", length, min(self._lengths.burst, drafter.pause)

    async def _round(
        self, drafter: Drafter, origin: str, length: int, begin: float, deadline: float
    ) -> Delta:
        """Asks the drafter for a proposal, and the target for its verification.

        If the proposal is empty, the target decodes one token.
        """
        state, stats, lengths = self._state, self._stats, self._lengths
        request = state.request(length)
        lengths.begin(length, begin)
        try:
            draft = await drafter.propose(request, deadline)
            drafted_at = self._clock()
            if not draft:
                state.fallbacks[NO_PROPOSAL] += 1
            verification = state.request(len(draft) + 1, draft, request.sampling)
            response = await self._target.answer(verification, deadline)
            ended = has_ended(draft, response)
            counts = read_verification(draft, response.token_ids, ended, response.num_verified)
            now = self._clock()
            lengths.verified(origin + self._kind, counts, stats.running, now)
        finally:
            lengths.end(length, self._clock())
        if counts.num_verified:
            state.speculation.record(counts.num_verified, counts.num_accepted)
            stats.by_origin[origin].record(counts.num_verified, counts.num_accepted)
            stats.round_times.draft += drafted_at - begin
            stats.round_times.verification += now - drafted_at
            self._verified_at = now
        return self._take(response, EndReason.END_ID if ended else None)

    async def _burst(self, alone: Request, deadline: float) -> AsyncGenerator[Delta, None]:
        state, before, lengths = self._state, len(self._state.text), self._lengths
        lengths.begin(0, self._clock())
        try:
            async with aclosing(self._target.answers(alone, deadline)) as responses:
                async for response in responses:
                    lengths.received(len(response.token_ids), self._clock())
                    yield self._take(response, _end_reason(response))
                    if state.end_reason is not None:
                        break
            lengths.decoded(len(state.text) - before, self._stats.running)
        finally:
            lengths.end(0, self._clock())
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


def draft_length(state: CompletionState, target: Limits, room: int) -> int:
    """Returns the largest K of the next round. With 0 the target decodes the rest of the completion alone.

    Three things bound K: the remaining tokens, of which one is the target's own; the `room` of the drafter;
    and the target's `max_input_len`, since all K + 1 tokens may be in the next round's prompt.
    """
    if state.end_reason is not None:
        return 0
    fitting = target.max_input_len - len(state.text) - 1
    return max(0, min(state.max_draft_len, state.num_remaining - 1, fitting, room))


def bounded(longest: int, schedule: Mapping[int, int], load: int) -> int:
    """Returns `longest`, or the K of `schedule` if that is less: it has K from so many completions on."""
    lengths = [length for least, length in schedule.items() if least <= load] if schedule else ()
    return min(longest, lengths[-1]) if lengths else longest


class DraftLengths(Protocol):
    """Chooses K for the rounds of one completion, by their times and results if it notes them.

    `origin` names drafts with similar acceptance and times. `load` is the number of running completions.
    `now` is in seconds of the loop's clock. Every `begin` is followed by an `end`, with the other notes of
    the round or burst between them. A `begin` without a `choose` before it is a burst for which there was no
    draft.
    """

    burst: int
    """The number of tokens that the target decodes alone after a choice of 0."""

    def choose(self, origin: str, longest: int, load: int, now: float) -> int:
        """Returns K of the next round, 0 to `longest`."""

    def begin(self, length: int, now: float) -> None:
        """Notes the begin of a round with a draft of `length` tokens, or of a burst with 0."""
        return

    def verified(self, origin: str, counts: VerificationCounts, load: int, now: float) -> None:
        """Notes the result of a round."""
        return

    def received(self, num_tokens: int, now: float) -> None:
        """Notes new tokens of a burst."""
        return

    def decoded(self, num_tokens: int, load: int) -> None:
        """Notes that a burst is complete, with `num_tokens` in all."""
        return

    def end(self, length: int, now: float) -> None:
        """Notes the end of the round or burst, complete or not."""
        return


class FixedLengths(DraftLengths):
    """Chooses the largest K in every round, within the `schedule`."""

    burst = 16

    def __init__(self, schedule: Mapping[int, int]) -> None:
        self._schedule = schedule

    def choose(self, origin: str, longest: int, load: int, now: float) -> int:
        return bounded(longest, self._schedule, load)


@dataclass(slots=True)
class VerificationCounts:
    """The numbers of draft tokens that one verification verified and accepted."""

    num_verified: int
    """The number of verified draft tokens, as far as the response shows it."""
    num_accepted: int


def has_ended(draft: list[int], response: Response) -> bool:
    """Says whether the verification of `draft`, asked for `len(draft) + 1` tokens, met an end token.

    At the position of a rejected token the target's token differs. So a response that only repeats verified
    tokens lacks the last one, which was the end token. An engine that does not report `num_verified` leaves
    that open.
    """
    new, verified = response.token_ids, response.num_verified
    if not new or response.finish_reason is FinishReason.END_ID:
        return True
    if not draft or verified is None:
        return False
    if not verified:  # The engine discarded the draft: this was ordinary decoding.
        return len(new) <= len(draft)
    return len(new) <= verified and new == draft[: len(new)]


def read_verification(
    draft: list[int], new: list[int], ended: bool, num_verified: int | None = None
) -> VerificationCounts:
    """Returns the counts of a verification of `draft` that was asked for `len(draft) + 1` tokens.

    All `new` tokens are the target's own, so the counts serve the statistics alone. An engine may discard the
    end of the draft (rule 7 of `trtspec.serving.executor`); `num_verified` is the length of the rest. If it
    is None, the response shows some discarded tokens, which do not count:

    * Tokens after one that differs come from ordinary decoding: nothing was verified.
    * A response that is a prefix of the draft and has not `ended` comes from a shorter draft with one token
      of the target's own after it. The rest was not verified.
    """
    if num_verified is not None:
        return VerificationCounts(num_verified, common_prefix(draft, new, min(num_verified, len(new))))
    agreeing = common_prefix(draft, new, min(len(draft), len(new)))
    if agreeing < len(new) - 1 and agreeing < len(draft):
        return VerificationCounts(0, 0)
    if agreeing == len(new) and not ended:
        verified = max(agreeing - 1, 0)
        return VerificationCounts(verified, verified)
    return VerificationCounts(len(draft), agreeing)
