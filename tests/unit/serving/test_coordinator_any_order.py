"""Whatever comes in whatever order: no place is lost or doubled, and each text is the target's own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes.expected import expect
from tests.fakes.languages import DRAFT, TARGET, chatter
from tests.fakes.scripted_executor import ScriptedExecutor, agreeing
from tests.fakes.trimming import Trimming, sometimes
from trtspec.serving.bounds import Bounds
from trtspec.serving.completion import CompletionRequest, Delta
from trtspec.serving.coordinator import Coordinator
from trtspec.serving.errors import Busy, TimedOut
from trtspec.serving.executor import Listener, Request
from trtspec.serving.tokenizer import Tokenizer

WORDS = [*range(60, 90), 256, 257]


@dataclass(frozen=True)
class Arrival:
    """A request, and what happens to it: the turn of the loop in which it comes and its client leaves."""

    turn: int
    request: CompletionRequest
    leaves: int | None


requests = st.builds(
    CompletionRequest,
    prompt_token_ids=st.lists(st.integers(1, 200), min_size=1, max_size=40),
    max_tokens=st.integers(1, 60),
    num_draft_tokens=st.none() | st.integers(0, 8),
    stop=st.sampled_from([(), ("ab",), ("b", "zz")]),
    timeout_s=st.none() | st.sampled_from([0.001, 0.05]),
)
arrivals = st.builds(Arrival, st.integers(0, 60), requests, st.none() | st.integers(0, 60))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    arrivals=st.lists(arrivals, min_size=1, max_size=24),
    places=st.integers(1, 6),
    kv_tokens=st.none() | st.integers(60, 400),
    queue=st.integers(0, 24),
    faults=st.lists(st.integers(0, 40), max_size=8),
    agreement=st.sampled_from([0.0, 0.6, 1.0]),
    seed=st.integers(0, 1000),
)
def test_any_interleaving(
    tokenizer: Tokenizer,
    byte_level: tokenizers.Tokenizer,
    arrivals: list[Arrival],
    places: int,
    kv_tokens: int | None,
    queue: int,
    faults: list[int],
    agreement: float,
    seed: int,
) -> None:
    language, failing = chatter(WORDS, seed), set(faults)

    async def main() -> None:
        inner = ScriptedExecutor(TARGET, language)
        target = Watched(Trimming(inner, sometimes(seed)), inner)
        draft = ScriptedExecutor(
            DRAFT,
            agreeing(language, DRAFT.vocab_size, agreement),
            fails=lambda request: "out of order" if len(draft.requests) in failing else None,
        )
        bounds = Bounds(places, kv_tokens, max_queue_size=queue)
        coordinator = Coordinator(target, draft, tokenizer, bounds=bounds)
        ends = await asyncio.gather(*(one(coordinator, each) for each in arrivals))

        for arrival, end in zip(arrivals, ends, strict=True):
            if end is None:
                assert arrival.leaves is not None
            elif isinstance(end, TimedOut):
                assert arrival.request.timeout_s is not None
            elif not isinstance(end, Busy):
                wanted = expect(arrival.request, language, tokenizer, byte_level.decode)
                assert (end.text, end.token_ids) == (wanted.text, wanted.token_ids)
                assert end.completion is not None
                assert end.completion.end_reason is wanted.end_reason
        assert target.most_at_once <= places
        assert (inner.in_flight, draft.in_flight) == (0, 0)
        assert (coordinator.stats.running, coordinator.stats.waiting) == (0, 0)
        assert coordinator.stats.refused == sum(isinstance(end, Busy) for end in ends)
        # All places are there again, as far as the cache holds so many texts.
        room = places if kv_tokens is None else min(places, kv_tokens // (1 + 5 + TARGET.max_draft_len))
        later = [coordinator.complete(replace(GOOD, prompt_token_ids=[i + 1])) for i in range(room)]
        assert all(delta.completion for delta in await asyncio.gather(*later))

    asyncio.run(asyncio.wait_for(main(), 30))


GOOD = CompletionRequest(prompt_token_ids=[1], max_tokens=5)


class Watched(Trimming):
    """Counts the requests that are at the target at once."""

    def __init__(self, trimming: Trimming, inner: ScriptedExecutor) -> None:
        super().__init__(trimming, lambda length: length)
        self._inner, self.most_at_once = inner, 0

    def enqueue_request(self, request: Request, listener: Listener) -> int:
        request_id = super().enqueue_request(request, listener)
        self.most_at_once = max(self.most_at_once, self._inner.in_flight)
        return request_id


async def one(coordinator: Coordinator, arrival: Arrival) -> Delta | Busy | TimedOut | None:
    """The completion, the error that it met, or None where the client left."""
    for _ in range(arrival.turn):
        await asyncio.sleep(0)
    task = asyncio.ensure_future(coordinator.complete(arrival.request))
    if arrival.leaves is not None:
        for _ in range(arrival.leaves):
            await asyncio.sleep(0)
        task.cancel()
    try:
        return await task
    except (Busy, TimedOut) as error:
        return error
    except asyncio.CancelledError:
        return None
