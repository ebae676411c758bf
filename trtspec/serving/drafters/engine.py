"""Drafts from an engine, whose smaller model proposes what it would generate next."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from trtspec.serving.async_executor import AsyncExecutor
from trtspec.serving.drafters.source import ENGINE, Offer
from trtspec.serving.errors import Busy, Cancelled, EngineFailure, EngineTimedOut, GuideError
from trtspec.serving.executor import Executor, FinishReason, Limits, Request, SamplingConfig
from trtspec.serving.stats import Stats
from trtspec.serving.text import Text

log = logging.getLogger(__name__)
MAX_FAILURES = 3
FIRST_REST_S, LONGEST_REST_S = 1.0, 60.0


class EngineSource:
    """The draft engine, behind the circuit breaker that all its completions share.

    An engine that fails, or takes longer than `timeout_s`, rests for a while, and no completion fails because
    of it. An engine that `draws_alike` samples with the target's random numbers, and so is likely to draw the
    target's tokens. Any other proposes its likeliest tokens, which are accepted most often. It must not
    sample with the random numbers by which its draft is accepted (rule 4 of `trtspec.serving.executor`).
    """

    def __init__(
        self,
        engine: Executor,
        target_vocab_size: int,
        timeout_s: float,
        stats: Stats,
        *,
        draws_alike: bool = True,
    ) -> None:
        self.limits, self._engine = engine.limits, AsyncExecutor(engine)
        self._vocab_size, self._timeout_s = target_vocab_size, timeout_s
        self._breaker, self._stats = CircuitBreaker(), stats
        self._draws_alike = draws_alike

    def drafter(self, text: Text, tenant: str = "") -> EngineDrafter:
        return EngineDrafter(self, text)

    def reap(self, now: float) -> None:
        self._engine.reap(now)

    def is_at_rest(self) -> bool:
        breaker = self._breaker
        return not breaker.is_closed() and breaker.is_resting(asyncio.get_running_loop().time())

    async def propose(self, request: Request, deadline: float) -> list[int]:
        """Returns the proposal, which is empty if the draft engine fails or proposes the end.

        The proposal ends before a token that the target lacks: vocabularies may be padded differently.
        """
        clock = asyncio.get_running_loop().time
        now = clock()
        own_deadline = min(deadline, now + self._timeout_s)
        asked = draft_request(request, self.limits)
        if not (self._draws_alike or asked.sampling.is_greedy):
            asked = replace(asked, sampling=SamplingConfig())
        if (period := self._breaker.begin(now)) is None:
            return self._nothing("draft_at_rest")
        try:
            response = await self._engine.answer(asked, own_deadline)
        except Exception as failure:
            if isinstance(failure, EngineTimedOut) and own_deadline == deadline:
                self._breaker.left(period)
                raise
            if asked.guide is not None and type(failure) in (EngineFailure, GuideError, Busy):
                # A guide that allows no token fails its own request; others must keep their drafts.
                self._breaker.left(period)
                return self._nothing("draft_ended")
            self._fail(failure, period, clock())
            return self._nothing("draft_timed_out" if isinstance(failure, EngineTimedOut) else "draft_failed")
        except BaseException:  # The client left, or the loop ends.
            self._breaker.left(period)
            raise
        self._succeed(period)
        proposal = response.token_ids[: request.max_tokens]
        for position, token_id in enumerate(proposal):
            if not 0 <= token_id < self._vocab_size:
                proposal = proposal[:position]
                break
        if not proposal and response.finish_reason is FinishReason.LENGTH:
            return self._nothing("draft_waits")
        return proposal or self._nothing("draft_ended")

    def _nothing(self, why: str) -> list[int]:
        self._stats.fallbacks[why] += 1
        return []

    def _succeed(self, period: int) -> None:
        self._breaker.succeeded(period)
        if self._breaker.is_closed() and not self._stats.draft_available:
            log.warning("the draft answers again")
        self._stats.draft_available = self._breaker.is_closed()

    def _fail(self, failure: Exception, period: int, now: float) -> None:
        self._breaker.failed(period, now)
        self._stats.draft_available = self._breaker.is_closed()
        consequence = "" if self._stats.draft_available else ", so the target decodes alone for a while"
        is_known = isinstance(failure, (EngineFailure, Cancelled))
        log.warning("the draft failed%s: %s", consequence, failure, exc_info=not is_known)


class EngineDrafter:
    """Proposes tokens of the draft engine for one sequence, and offers nothing while the engine rests."""

    pause = 64
    silence = "draft_at_rest"

    def __init__(self, source: EngineSource, text: Text) -> None:
        self._source, self._text, self.propose = source, text, source.propose

    def offer(self) -> Offer | None:
        if self._source.is_at_rest():
            return None
        return Offer(ENGINE, room(self._source.limits, self._text))

    def end(self) -> None:
        """Does nothing: the engine has its own cache."""


def draft_request(request: Request, draft: Limits) -> Request:
    """Returns the request without options about tokens that the draft lacks, for which it would refuse it.

    The draft never proposes such tokens. A guide that it cannot follow is left out too.
    """
    end_id, size, guide = request.end_id, draft.vocab_size, request.guide
    has_options = request.return_log_probs or guide or request.bad_words or request.embedding_bias
    if not has_options and (end_id is None or end_id < size):
        return request  # The usual case. A copy takes a twentieth of a round's own time.
    return replace(
        request,
        return_log_probs=False,
        top_log_probs=0,
        guide=guide if guide is not None and guide.guide_type in draft.guide_types else None,
        end_id=end_id if end_id is not None and end_id < size else None,
        bad_words=[word for word in request.bad_words if max(word) < size],
        embedding_bias={token: bias for token, bias in request.embedding_bias.items() if token < size},
    )


def room(draft: Limits, text: Text) -> int:
    """Returns the number of tokens that the draft engine can generate after `text`.

    It is 0 if `text` has a token that the draft lacks, as a padded vocabulary may have.
    """
    if len(text) > draft.max_input_len or text.largest >= draft.vocab_size:
        return 0
    return max(0, draft.max_seq_len - draft.max_draft_len - len(text))


class CircuitBreaker:
    """Rests the draft engine after `MAX_FAILURES` consecutive failures.

    After a rest it allows one attempt. Success ends the rests; another failure doubles the next rest, up to
    `LONGEST_REST_S`. A period is a use of the engine, a rest, or an attempt, and has a number. A request
    reports its result with the number of the period in which it began. If that period is over, the result
    says nothing about the present one and changes nothing. `now` is in seconds of any one clock.
    """

    def __init__(self) -> None:
        self._period = 0
        self._failures = 0
        self._rest_s = FIRST_REST_S
        self._rests_until: float | None = None  # The end of the rest; None while the engine is in use.
        self._is_trying = False

    def is_closed(self) -> bool:
        """Says whether the draft engine is in use: neither at rest nor in the attempt that follows."""
        return self._rests_until is None

    def is_resting(self, now: float) -> bool:
        """Says whether the draft engine must not be asked now."""
        return self._rests_until is not None and (self._is_trying or now < self._rests_until)

    def begin(self, now: float) -> int | None:
        """Returns the period of a request that begins now; None if the draft engine must not be asked.

        The caller then reports the result with this number, by exactly one of the methods below.
        """
        if self.is_resting(now):
            return None
        if self._rests_until is not None:
            self._turn(is_trying=True)
        return self._period

    def succeeded(self, period: int) -> None:
        """Notes an answer, which ends the rests if it is the attempt's."""
        if period != self._period:
            return
        self._failures = 0
        if self._is_trying:
            self._rest_s, self._rests_until = FIRST_REST_S, None
            self._turn()

    def failed(self, period: int, now: float) -> None:
        """Notes a failure, which may begin a rest. The failure of an attempt begins a longer one."""
        if period != self._period:
            return
        self._failures += 1
        if self._is_trying:
            self._rest_s = min(2 * self._rest_s, LONGEST_REST_S)
        if self._failures >= MAX_FAILURES:
            self._rests_until = now + self._rest_s
            self._turn()

    def left(self, period: int) -> None:
        """Notes a request without a result that counts, for example because the client left."""
        if period == self._period and self._is_trying:
            self._turn()

    def _turn(self, is_trying: bool = False) -> None:
        self._period, self._is_trying = self._period + 1, is_trying
