"""The sources of drafts, by the names of methods in a recipe's `speculation.method`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trtspec.serving.drafters.engine import EngineSource
from trtspec.serving.drafters.hybrid import HybridSource
from trtspec.serving.drafters.lookup import LookupSource
from trtspec.serving.drafters.source import Drafting, DraftSource
from trtspec.serving.drafters.suffix import SuffixSource
from trtspec.serving.drafters.translated import TranslatedSource
from trtspec.serving.drafters.translation import Dictionary
from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executor import Executor
from trtspec.serving.stats import Stats


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


def _draft_model(engine: MakeEngineSource) -> DraftSource:
    return engine()


def _ngram(engine: MakeEngineSource, **lookup: int) -> DraftSource:
    return LookupSource(**lookup)


def _hybrid(engine: MakeEngineSource, **lookup: int) -> DraftSource:
    return HybridSource(LookupSource(**lookup), engine())


def _suffix(engine: MakeEngineSource, **options: Any) -> DraftSource:
    return SuffixSource(**options)


SOURCES: Mapping[str, Callable[..., DraftSource]] = {
    "draft_model": _draft_model,
    "ngram": _ngram,
    "hybrid": _hybrid,
    "suffix": _suffix,
    "eagle3": _draft_model,
    "eagle": _draft_model,
    "medusa": _draft_model,
}


def make_source(drafting: Drafting, engine: MakeEngineSource) -> DraftSource:
    """Returns the source of a method with its options; raises `EngineLoadError`."""
    make = SOURCES.get(drafting.kind)
    if make is None:
        raise EngineLoadError("draft_method", f"{drafting.kind!r} is none of {', '.join(SOURCES)}")
    return make(engine, **drafting.options)
