"""The sources of drafts, by the names of methods in a recipe's `speculation.method`, and their hybrid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trtspec.serving.drafters.engine import EngineSource
from trtspec.serving.drafters.lookup import LookupDrafter, LookupSource
from trtspec.serving.drafters.source import Drafter, Drafting, DraftSource, Offer
from trtspec.serving.drafters.suffix import SuffixSource
from trtspec.serving.drafters.translation import Dictionary, TranslatedSource
from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executor import Executor, Request
from trtspec.serving.stats import Stats
from trtspec.serving.text import Text


class HybridSource:
    """Drafts from a sequence that repeats itself at length, and from the draft engine elsewhere.

    It asks `lookup` first, which costs little, and `engine` if no long enough ending occurred before.
    """

    def __init__(self, lookup: LookupSource, engine: DraftSource) -> None:
        self._lookup, self._engine = lookup, engine

    def drafter(self, text: Text, tenant: str = "") -> HybridDrafter:
        return HybridDrafter(self._lookup.drafter(text, tenant), self._engine.drafter(text, tenant))

    def reap(self, now: float) -> None:
        self._engine.reap(now)


class HybridDrafter:
    """Proposes with the drafter that made the last offer."""

    def __init__(self, lookup: LookupDrafter, engine: Drafter) -> None:
        self._lookup, self._engine = lookup, engine
        self._chosen: Drafter = engine
        self.silence = engine.silence

    @property
    def pause(self) -> int:
        """The pause of `lookup`: the sequence may repeat itself soon, whatever the engine offers."""
        return self._lookup.pause

    def offer(self) -> Offer | None:
        """Returns None also if the engine has no room any more: the sequence may repeat itself later."""
        for drafter in (self._lookup, self._engine):
            self._chosen = drafter
            if (offer := drafter.offer()) and offer.room:
                return offer
        self.silence = "no_room" if offer else self._engine.silence
        return None

    async def propose(self, request: Request, deadline: float) -> list[int]:
        return await self._chosen.propose(request, deadline)

    def end(self) -> None:
        self._lookup.end()


@dataclass(frozen=True, slots=True)
class SourceInputs:
    """The inputs of the source that asks the draft engine."""

    draft: Executor | None
    """The draft engine; None if the method has none."""
    target_vocab_size: int
    timeout_s: float
    """The longest wait for a proposal of the engine."""
    stats: Stats
    dictionary: Dictionary | None = None
    """Given if the engine's vocabulary differs from the target's."""
    draws_alike: bool = True
    """True if the engine draws sampled tokens as the target does."""

    def engine(self) -> DraftSource:
        """Returns the source that asks the draft engine; raises `EngineLoadError` if there is no engine."""
        if self.draft is None:
            raise EngineLoadError("draft_engine_dir", "missing: this method of drafting needs an engine")
        size = self.draft.limits.vocab_size if self.dictionary else self.target_vocab_size
        engine = EngineSource(self.draft, size, self.timeout_s, self.stats, draws_alike=self.draws_alike)
        return TranslatedSource(engine, self.dictionary, self.stats) if self.dictionary else engine


MakeEngineSource = Callable[[], DraftSource]
"""`SourceInputs.engine`, which a method calls if it needs the draft engine."""


SOURCES: Mapping[str, Callable[..., DraftSource]] = {
    "draft_model": lambda engine: engine(),
    "ngram": lambda engine, **lookup: LookupSource(**lookup),
    "hybrid": lambda engine, **lookup: HybridSource(LookupSource(**lookup), engine()),
    "suffix": lambda engine, **options: SuffixSource(**options),
    "eagle3": lambda engine: engine(),
    "eagle": lambda engine: engine(),
    "medusa": lambda engine: engine(),
}


def make_source(drafting: Drafting, engine: MakeEngineSource) -> DraftSource:
    """Returns the source of a method with its options; raises `EngineLoadError`."""
    make = SOURCES.get(drafting.kind)
    if make is None:
        raise EngineLoadError("draft_method", f"{drafting.kind!r} is none of {', '.join(SOURCES)}")
    return make(engine, **drafting.options)
