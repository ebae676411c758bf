"""What proposes tokens: the draft engine, as long as it does its work."""

from __future__ import annotations

import asyncio
import logging

from trtspec.serving.breaker import Breaker
from trtspec.serving.calls import Engine
from trtspec.serving.errors import Cancelled, EngineFailure, Overdue
from trtspec.serving.executor import Limits, Request
from trtspec.serving.stats import Stats

log = logging.getLogger(__name__)


class EngineDrafter:
    """Proposes what a smaller engine would say next.

    An engine that fails, or takes longer than `timeout_s`, is left out for a while: see `Breaker`. No
    completion fails for it.
    """

    def __init__(self, engine: Engine, target_vocab_size: int, timeout_s: float, stats: Stats) -> None:
        self._engine, self._vocab_size, self._timeout_s = engine, target_vocab_size, timeout_s
        self._breaker, self._stats = Breaker(), stats

    @property
    def limits(self) -> Limits:
        return self._engine.limits

    def may_try(self) -> bool:
        """Whether to ask it for the next round; `propose` must follow."""
        return self._breaker.may_try(asyncio.get_running_loop().time())

    async def propose(self, request: Request, deadline: float) -> list[int]:
        """Up to `request.max_tokens` tokens; fewer, or none, where the draft expects the end of the text.

        None as well where it fails. A token that the target does not have ends the proposal: vocabularies
        may be padded differently. Raises `Overdue` when the deadline passes, a time on the loop's clock.
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
