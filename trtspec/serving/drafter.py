"""The drafter: it proposes tokens with the draft engine, as long as that works."""

from __future__ import annotations

import asyncio
import logging

from trtspec.serving.async_executor import AsyncExecutor
from trtspec.serving.circuit_breaker import CircuitBreaker
from trtspec.serving.errors import Cancelled, EngineFailure, Overdue
from trtspec.serving.executor import Limits, Request
from trtspec.serving.stats import Stats

log = logging.getLogger(__name__)


class EngineDrafter:
    """Proposes the tokens that a smaller engine generates next.

    An engine that fails, or takes longer than `timeout_s`, is left out for a while (see `CircuitBreaker`), so
    no completion fails because of it.
    """

    def __init__(self, engine: AsyncExecutor, target_vocab_size: int, timeout_s: float, stats: Stats) -> None:
        self._engine, self._vocab_size, self._timeout_s = engine, target_vocab_size, timeout_s
        self._breaker, self._stats = CircuitBreaker(), stats

    @property
    def limits(self) -> Limits:
        return self._engine.limits

    def may_try(self) -> bool:
        """Says whether to ask the draft in the next round; `propose` must follow."""
        return self._breaker.may_try(asyncio.get_running_loop().time())

    async def propose(self, request: Request, deadline: float) -> list[int]:
        """Returns up to `request.max_tokens` tokens, fewer where the draft expects the end of the text.

        The list is empty where the draft fails. A token that the target does not have ends the proposal:
        vocabularies may be padded differently. Raises `Overdue` when the `deadline`, on the loop's clock,
        passes.
        """
        loop = asyncio.get_running_loop()
        until = min(deadline, loop.time() + self._timeout_s)
        try:
            response = await self._engine.answer(request, until)
        except (EngineFailure, Cancelled) as failure:
            if isinstance(failure, Overdue) and until == deadline:
                self._breaker.left()
                raise
            self._fail(failure, loop.time())
            return []
        except asyncio.CancelledError:
            self._breaker.left()
            raise
        self._succeed()
        proposal = response.token_ids[: request.max_tokens]
        for position, token_id in enumerate(proposal):
            if not 0 <= token_id < self._vocab_size:
                return proposal[:position]
        return proposal

    def _succeed(self) -> None:
        if not self._stats.draft_available:
            log.warning("the draft answers again")
        self._stats.draft_available = True
        self._breaker.succeeded()

    def _fail(self, failure: Exception, now: float) -> None:
        self._breaker.failed(now)
        self._stats.draft_failures += 1
        self._stats.draft_available = self._breaker.is_closed()
        consequence = "" if self._stats.draft_available else ", so the target goes on alone for a while"
        log.warning("the draft failed%s: %s", consequence, failure)
