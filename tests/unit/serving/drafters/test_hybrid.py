"""Lookup first, the draft engine elsewhere, and neither where the engine rests."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.fakes.clock import Clock
from tests.fakes.scripted_executor import ScriptedExecutor
from trtspec.serving.drafters.engine import FIRST_REST_S, MAX_FAILURES
from trtspec.serving.drafters.lookup import LONGEST_PAUSE
from trtspec.serving.drafters.source import Drafting, Offer
from trtspec.serving.drafters.sources import HybridDrafter, HybridSource, SourceInputs, make_source
from trtspec.serving.executor import Limits, Request
from trtspec.serving.stats import Stats
from trtspec.serving.text import Text

LIMITS = Limits(max_batch_size=4, max_input_len=63, max_seq_len=64, max_draft_len=0, vocab_size=96)
QUOTING, FRESH = [1, 2, 3, 4, 5, 1, 2, 3, 4], [1, 2, 3, 4, 5]
RunMain = Callable[[Awaitable[Any]], Any]


class Draft:
    """The draft engine, which always says 90, and fails while it `is_broken`."""

    def __init__(self) -> None:
        self.is_broken, self.stats = False, Stats()
        self.engine = ScriptedExecutor(LIMITS, lambda text: 90, fails=self._fails)

    def _fails(self, request: Request) -> str | None:
        return "broken" if self.is_broken else None

    def drafter(self, text: Text) -> HybridDrafter:
        options = {"prompt_lookup_min": 4, "prompt_lookup_max": 8}
        around = SourceInputs(self.engine, target_vocab_size=96, timeout_s=5.0, stats=self.stats)
        source = make_source(Drafting("hybrid", options), around.engine)
        assert isinstance(source, HybridSource)
        return source.drafter(text)


@pytest.fixture
def draft() -> Draft:
    return Draft()


async def propose(drafter: HybridDrafter, text: Text, count: int = 3) -> list[int]:
    return await drafter.propose(Request(text, count), math.inf)


def test_the_text_is_asked_first(run: RunMain, draft: Draft) -> None:
    async def main() -> None:
        text = Text(QUOTING)
        drafter = draft.drafter(text)
        assert drafter.offer() == Offer("lookup", len(text))
        assert await propose(drafter, text) == [5, 1, 2]
        assert draft.engine.requests == []

    run(main())


def test_the_engine_is_asked_elsewhere(run: RunMain, draft: Draft) -> None:
    async def main() -> None:
        text = Text(FRESH)
        drafter = draft.drafter(text)
        assert drafter.offer() == Offer("engine", 64 - len(text))
        assert await propose(drafter, text) == [90, 90, 90]
        text.extend(QUOTING[:4])
        assert drafter.offer() == Offer("lookup", len(text))
        assert await propose(drafter, text) == [5, 1, 2]
        assert len(draft.engine.requests) == 1

    run(main())


def test_an_ending_of_the_least_tokens_and_no_fewer_is_quoted(run: RunMain, draft: Draft) -> None:
    async def main() -> None:
        for last, origin in ((3, "engine"), (4, "lookup")):
            offer = draft.drafter(Text([*FRESH, 60, *FRESH[-last:]])).offer()
            assert offer
            assert offer.origin == origin

    run(main())


def test_an_engine_at_rest_leaves_the_text(run: RunMain, draft: Draft, clock: Clock) -> None:
    async def main() -> None:
        text = Text(FRESH)
        drafter = draft.drafter(text)
        draft.is_broken = True
        for _ in range(MAX_FAILURES):
            assert drafter.offer() is not None
            assert await propose(drafter, text) == []
        assert not draft.stats.draft_available
        assert drafter.offer() is None
        asked = len(draft.engine.requests)

        text.extend(QUOTING[:4])
        assert drafter.offer() == Offer("lookup", len(text))
        assert await propose(drafter, text) == [5, 1, 2]
        assert len(draft.engine.requests) == asked

        text.extend([70, 71])
        assert drafter.offer() is None
        draft.is_broken = False
        clock.seconds += FIRST_REST_S
        assert drafter.offer() == Offer("engine", 64 - len(text))
        assert await propose(drafter, text) == [90, 90, 90]
        assert draft.stats.draft_available

    run(main())


def test_a_text_that_the_engine_cannot_take_is_still_quoted(run: RunMain, draft: Draft) -> None:
    """The engine has no room for it ever again, and that is no reason to stop looking."""

    async def main() -> None:
        text = Text(range(64))
        drafter = draft.drafter(text)
        assert drafter.offer() is None
        text.extend(QUOTING[:4])
        assert drafter.offer() == Offer("lookup", len(text))

    run(main())


def test_an_engine_that_is_not_worth_it_does_not_keep_the_text_from_being_looked_at(
    run: RunMain, draft: Draft
) -> None:
    """Behind an offer of the engine the next look comes soon, and later, the longer the text is new."""

    async def main() -> None:
        text = Text(FRESH)
        drafter = draft.drafter(text)
        pauses = []
        for _ in range(6):
            assert drafter.offer() == Offer("engine", 64 - len(text))
            pauses.append(drafter.pause)
            text.extend(range(len(text) + 1, len(text) + 1 + drafter.pause))
        assert pauses[:3] == [4, 4, 4]
        assert pauses == sorted(pauses)
        assert pauses[-1] > 8

    run(main())


def test_an_offer_of_the_text_that_is_not_taken_is_not_made_again_at_once(run: RunMain, draft: Draft) -> None:
    async def main() -> None:
        drafter = draft.drafter(Text(QUOTING))
        offer = drafter.offer()
        assert offer is not None
        assert offer.origin == "lookup"
        assert drafter.pause == LONGEST_PAUSE

    run(main())
