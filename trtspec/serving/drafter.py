"""What proposes tokens: the draft engine."""

from __future__ import annotations

from trtspec.serving.calls import answer
from trtspec.serving.errors import EngineFailure
from trtspec.serving.executor import Executor, FinishReason, Limits, Request


class EngineDrafter:
    """Proposes what a smaller engine would say next."""

    def __init__(self, executor: Executor, target_vocab_size: int) -> None:
        self._executor, self._vocab_size = executor, target_vocab_size

    @property
    def limits(self) -> Limits:
        return self._executor.limits

    async def propose(self, request: Request) -> list[int]:
        """Up to `request.max_tokens` tokens; fewer, or none, where the draft expects the end of the text.

        A token that the target does not have ends the proposal: vocabularies may be padded differently.
        Raises `EngineFailure` when the draft engine fails or stops.
        """
        response = await answer(self._executor, request)
        if response.finish_reason is FinishReason.CANCELLED:
            raise EngineFailure("the draft engine stopped")
        proposal = response.token_ids[: request.max_tokens]
        for position, token_id in enumerate(proposal):
            if not 0 <= token_id < self._vocab_size:
                return proposal[:position]
        return proposal
