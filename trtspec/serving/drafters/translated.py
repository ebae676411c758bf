"""Drafts from an engine with another vocabulary than the target's: both are translated, text and proposal."""

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
"""The new tokens of a text that take some milliseconds to translate."""


class TranslatedSource:
    """Asks the draft engine, whose vocabulary is that of the dictionary's draft, in its own tokens."""

    def __init__(self, engine: EngineSource, dictionary: Dictionary, stats: Stats) -> None:
        self.engine, self.dictionary, self.stats = engine, dictionary, stats

    def drafter(self, text: Text, tenant: str = "") -> TranslatedDrafter:
        return TranslatedDrafter(self, text)

    def reap(self, now: float) -> None:
        self.engine.reap(now)


class TranslatedDrafter:
    """Proposes with the draft engine what follows one text, of which it keeps a translation.

    The draft is asked for as many tokens as the wanted ones of the target are on average, and what it says
    beyond them is left out. Reading is part of a proposal, so that its time is that of the round.
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
            await asyncio.to_thread(translation.read)  # Other texts get their rounds meanwhile.
        else:
            translation.read()
        wanted = max(1, round(request.max_tokens * translation.ratio))
        wanted = min(wanted, room(source.engine.limits, translation.text)) if translation.text else 0
        if not wanted:
            return self._nothing()
        said = await source.engine.propose(self._asked(request, wanted), deadline)
        found = translation.translated(said)[: request.max_tokens]
        return found if found or not said else self._nothing()

    def _asked(self, request: Request, wanted: int) -> Request:
        """Returns the request in the draft's tokens.

        What names tokens of the target has no meaning to the draft, and its guides are of the target too.
        """
        ends = self._source.dictionary.draft.end_ids
        return replace(
            request,
            input_token_ids=self._translation.text,
            max_tokens=wanted,
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
        """Keeps nothing: the engine has a cache of its own."""


def draw_alike(target: Executor, draft: Executor, dictionary: Dictionary) -> bool:
    """Says whether the draft draws as the target does from now on: both must be engines that can."""
    if not isinstance(target, DrawsByToken) or not isinstance(draft, DrawsByToken):
        return False
    draft.draw_as(dictionary.counterparts())
    return True
