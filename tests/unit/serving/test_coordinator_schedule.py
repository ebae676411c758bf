"""The largest K by the number of running completions, as it comes and goes, with every policy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.fakes.expected import Cases, assert_is, expect
from tests.fakes.languages import DRAFT, TARGET, Run, by_prompt, drafting_for
from tests.fakes.scripted_executor import ScriptedExecutor, agreeing, babble
from trtspec.serving.adaptive.policy import Policy
from trtspec.serving.admission import ServingBounds
from trtspec.serving.assembly import assemble
from trtspec.serving.completion import NO_END, CompletionRequest
from trtspec.serving.coordinator import Coordinator
from trtspec.serving.executor import Limits, Listener, Request
from trtspec.serving.tokenizer import Tokenizer

SCHEDULE = {1: 8, 2: 5, 4: 2, 7: 0}
POLICIES: tuple[Policy, ...] = ("fixed", "adaptive")


def allowed(running: int) -> int:
    """What the schedule says in the words of its documentation, read row by row."""
    return 8 if running < 2 else 5 if running < 4 else 2 if running < 7 else 0


class Watched(ScriptedExecutor):
    """A draft engine that notes how much each round asks of it, and how many completions run then."""

    def __init__(self, limits: Limits, coordinators: Sequence[Coordinator], target: ScriptedExecutor) -> None:
        super().__init__(limits, agreeing(target.next_token, limits.vocab_size, 1.0))
        self.coordinators = coordinators
        self.asked: list[tuple[int, int]] = []

    def enqueue_request(self, request: Request, listener: Listener) -> int:
        self.asked.append((self.coordinators[0].stats.running, request.max_tokens))
        return super().enqueue_request(request, listener)


def scheduled(tokenizer: Tokenizer, policy: Policy, places: int = 12) -> tuple[Coordinator, Watched]:
    target, coordinators = ScriptedExecutor(TARGET, babble(TARGET.vocab_size)), list[Coordinator]()
    draft = Watched(DRAFT, coordinators, target)
    bounds = ServingBounds(places, draft_schedule=SCHEDULE)
    coordinators.append(assemble(target, draft, tokenizer, bounds=bounds, policy=policy))
    return coordinators[0], draft


def request(length: int, num_draft_tokens: int | None = None) -> CompletionRequest:
    return CompletionRequest(
        prompt_token_ids=[length % 7 + 1],
        max_tokens=length,
        end_id=NO_END,
        num_draft_tokens=num_draft_tokens,
    )


@pytest.mark.parametrize("named", [None, 8], ids=["server's K", "request's K"])
@pytest.mark.parametrize("policy", POLICIES)
def test_no_round_drafts_more_than_the_schedule_allows(
    run: Run, tokenizer: Tokenizer, policy: Policy, named: int | None
) -> None:
    """Texts of all lengths begin and end all the time, so the load goes up and down through every row."""

    async def main() -> None:
        coordinator, draft = scheduled(tokenizer, policy)

        async def client(index: int) -> None:
            for turn in range(4):
                await asyncio.sleep(0.002 * ((index * 5 + turn) % 7))
                await coordinator.complete(request(40 + 25 * ((index + turn) % 8), named))

        await asyncio.gather(*map(client, range(9)))
        assert [pair for pair in draft.asked if pair[1] > allowed(pair[0])] == []
        assert {length for _, length in draft.asked if length}, "nothing was drafted"

    run(main())


@pytest.mark.parametrize("policy", POLICIES)
def test_k_changes_as_streams_come_and_go(run: Run, tokenizer: Tokenizer, policy: Policy) -> None:
    """One stream has long drafts, seven have none at all, and the last one of them has drafts again."""

    async def main() -> None:
        coordinator, draft = scheduled(tokenizer, policy)
        long = asyncio.ensure_future(coordinator.complete(request(380)))
        while len(draft.asked) < 3:
            await asyncio.sleep(0)
        alone, others = len(draft.asked), [coordinator.complete(request(60)) for _ in range(6)]
        await asyncio.gather(*others)
        crowded = draft.asked[alone:]
        assert [pair for pair in crowded if pair[0] >= 7] == []
        assert coordinator.stats.fallbacks["policy"] >= 6
        assert not long.done()
        before = len(draft.asked)
        await long
        assert any(running == 1 and length for running, length in draft.asked[before:])

    run(main())


@pytest.mark.parametrize("length", [2, 5])
def test_the_fixed_policy_drafts_as_much_as_is_allowed(run: Run, tokenizer: Tokenizer, length: int) -> None:
    running = {2: 4, 5: 2}[length]

    async def main() -> None:
        coordinator, draft = scheduled(tokenizer, "fixed")
        await asyncio.gather(*(coordinator.complete(request(200)) for _ in range(running)))
        lengths = [asked for now, asked in draft.asked if now == running]
        assert max(lengths) == length
        assert lengths.count(length) > len(lengths) / 2

    run(main())


@pytest.mark.parametrize("policy", POLICIES)
def test_answers_are_the_targets_own(
    run: Run, tokenizer: Tokenizer, byte_level: object, cases: Cases, policy: Policy
) -> None:
    requests, languages = cases

    async def main() -> None:
        target = ScriptedExecutor(TARGET, by_prompt(languages))
        bounds = ServingBounds(8, draft_schedule=SCHEDULE)
        draft = drafting_for(target, 0.8)
        coordinator = assemble(target, draft, tokenizer, bounds=bounds, policy=policy)
        deltas = await asyncio.gather(*(coordinator.complete(each) for each in requests))
        for each, delta in zip(requests, deltas, strict=True):
            assert_is(delta, expect(each, by_prompt(languages), tokenizer, byte_level.decode))  # type: ignore[attr-defined]

    run(main())
