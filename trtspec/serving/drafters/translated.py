"""Drafts from an engine with another vocabulary than the target's: sequence and proposal are translated."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from trtspec.serving.drafters.engine import EngineSource, room
from trtspec.serving.drafters.source import ENGINE, Offer
from trtspec.serving.drafters.translation import Dictionary, Translation
from trtspec.serving.executor import DrawsByToken, Executor, Request
from trtspec.serving.stats import Stats
from trtspec.serving.text import Text

LONG = 1024
"""The number of new tokens from which a translation takes milliseconds."""


class TranslatedSource:
    """Asks the draft engine in its own tokens, by the dictionary."""

    def __init__(self, engine: EngineSource, dictionary: Dictionary, stats: Stats) -> None:
        self.engine, self.dictionary, self.stats = engine, dictionary, stats

    def drafter(self, text: Text, tenant: str = "") -> TranslatedDrafter:
        return TranslatedDrafter(self, text)

    def reap(self, now: float) -> None:
        self.engine.reap(now)


class TranslatedDrafter:
    """Proposes tokens of the draft engine for one sequence, of which it keeps a translation.

    It asks the draft for the average number of its tokens in `request.max_tokens` tokens of the target, and
    cuts off the rest of the proposal. Translation is part of a proposal, so its time belongs to the round.
    """

    pause = 64
    silence = "draft_at_rest"

    def __init__(self, source: TranslatedSource, text: Text) -> None:
        self._source, self._translation = source, Translation(source.dictionary, text)

    def offer(self) -> Offer | None:
        if self._source.engine.is_at_rest():
            return None
        translation = self._translation
        left = room(self._source.engine.limits, translation.text) / translation.ratio
        return Offer(ENGINE, max(0, int(left) - translation.num_unread))

    async def propose(self, request: Request, deadline: float) -> list[int]:
        translation, source = self._translation, self._source
        if translation.num_unread > LONG:
            await asyncio.to_thread(translation.read)  # The loop goes on with other rounds.
        else:
            translation.read()
        max_tokens = max(1, round(request.max_tokens * translation.ratio))
        max_tokens = min(max_tokens, room(source.engine.limits, translation.text)) if translation.text else 0
        if not max_tokens:
            return self._nothing()
        proposal = await source.engine.propose(self._translate(request, max_tokens), deadline)
        found = translation.translated(proposal)[: request.max_tokens]
        return found if found or not proposal else self._nothing()

    def _translate(self, request: Request, max_tokens: int) -> Request:
        """Returns the request in the draft's tokens.

        It leaves out options with tokens of the target, and the guide, which is compiled for the target.
        """
        ends = self._source.dictionary.draft.end_ids
        return replace(
            request,
            input_token_ids=self._translation.text,
            max_tokens=max_tokens,
            end_id=ends[0] if ends and request.end_id is not None else None,
            bad_words=(),
            embedding_bias={},
            return_log_probs=False,
            top_log_probs=0,
            guide=None,
            num_guided=0,
        )

    def _nothing(self) -> list[int]:
        self._source.stats.fallbacks["draft_untranslated"] += 1
        return []

    def end(self) -> None:
        """Does nothing: the engine has its own cache."""


def draw_alike(target: Executor, draft: Executor, dictionary: Dictionary) -> bool:
    """Makes the draft draw as the target does, and returns True if both engines can."""
    if not isinstance(target, DrawsByToken) or not isinstance(draft, DrawsByToken):
        return False
    draft.draw_as(dictionary.counterparts())
    return True
