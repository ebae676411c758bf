from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.languages import TARGET, Run
from tests.fakes.scripted_executor import ScriptedExecutor, babble
from tests.fakes.suffix import SUFFIX
from trtspec.serving.assembly import assemble
from trtspec.serving.completion import NO_END, CompletionRequest
from trtspec.serving.drafters.source import Offer
from trtspec.serving.drafters.suffix import MOST_KEPT, MOST_READ, CachedAnswers, SuffixRules, SuffixSource
from trtspec.serving.executor import Request
from trtspec.serving.text import Text
from trtspec.serving.tokenizer import Tokenizer


def source(**changes: float) -> SuffixSource:
    return SuffixSource(**{**SUFFIX.options, **changes})


def proposed(
    text: Sequence[int], asked: SuffixSource | None = None, tenant: str = "one", most: int = 64
) -> tuple[Offer | None, list[int]]:
    whole = Text(text)
    drafter = (asked or source()).drafter(whole, tenant)
    offer = drafter.offer()
    if offer is None:
        return None, []
    return offer, asyncio.run(drafter.propose(Request(whole, min(most, offer.room)), math.inf))


def answer(asked: SuffixSource, tenant: str, tokens: Sequence[int]) -> None:
    text = Text([99])
    drafter = asked.drafter(text, tenant)
    text.extend(tokens)
    drafter.end()


def test_the_suffix_drafter_proposes_the_most_frequent_continuation() -> None:
    text = [*(1, 2, 3, 7, 8), *(1, 2, 3, 7, 9), *(1, 2, 3, 5, 6), 1, 2, 3]
    assert proposed(text) == (Offer("lookup", 3), [7, 9, 1])  # The latest of those that are as many.


@pytest.mark.parametrize(("factor", "length"), [(0.5, 2), (1.0, 4), (2.0, 8)])
def test_a_longer_ending_is_worth_more_tokens(factor: float, length: int) -> None:
    text = [*range(1, 20), *range(7, 11)]
    offer, tokens = proposed(text, source(suffix_decoding_max_spec_factor=factor))
    assert offer == Offer("lookup", length)
    assert tokens == list(range(11, 11 + length))


def test_no_more_of_an_ending_is_compared_than_is_wanted() -> None:
    offer, _ = proposed([*range(1, 60), *range(1, 40)], source(suffix_decoding_max_tree_depth=9))
    assert offer == Offer("lookup", 9)


def test_a_draft_ends_where_it_is_not_likely_any_more() -> None:
    text = [*(1, 2, 3, 7, 8), *(1, 2, 3, 7, 9), *(1, 2, 3, 7, 4), 1, 2, 3]
    assert proposed(text, source(suffix_decoding_min_token_prob=0.5))[1] == [7]


def test_the_suffix_drafter_continues_a_text_that_repeats_itself() -> None:
    assert proposed([5, 1, 2, 1, 2, 1, 2])[1] == [1, 2, 1, 2]


def test_the_suffix_drafter_proposes_nothing_for_an_ending_never_seen_before() -> None:
    assert proposed([1, 2, 3, 4]) == (None, [])
    assert proposed([]) == (None, [])


def test_earlier_answers_are_of_their_own_tenant() -> None:
    asked = source()
    answer(asked, "one", [1, 2, 3, 4, 5, 6])
    answer(asked, "", [1, 2, 3, 9, 9, 9])
    assert proposed([1, 2, 3], asked, "one") == (Offer("earlier_answers", 3), [4, 5, 6])
    assert proposed([1, 2, 3], asked, "two") == (None, [])
    assert proposed([1, 2, 3], asked, "") == (None, [])


def test_one_answer_does_not_run_into_the_next() -> None:
    asked = source()
    answer(asked, "one", [1, 2, 3, 4])
    answer(asked, "one", [7, 8])
    assert proposed([1, 2, 3], asked)[1] == [4]
    assert proposed([9, 4], asked) == (None, [])


def test_no_answers_are_kept_where_none_are_wanted() -> None:
    asked = source(suffix_decoding_max_cached_requests=0)
    answer(asked, "one", [1, 2, 3, 4])
    assert proposed([1, 2, 3], asked) == (None, [])


def kept(answers: CachedAnswers) -> int:
    generations = (answers._young, answers._old)
    assert sum(generation.num_tokens for generation in generations) <= MOST_KEPT
    return sum(generation.num_answers for generation in generations)


def test_the_older_half_of_the_answers_goes() -> None:
    answers = CachedAnswers(10)
    for number in range(1, 40):
        answers.keep("one", [number, 50, 51])
        assert min(number, 5) <= kept(answers) <= 10
    rules = SuffixRules(24, 1.0, 0.1)
    assert answers.follow("one", [39, 50], rules).tokens == [51]
    assert answers.follow("one", [29, 50], rules).score <= 1  # Only of what stands behind 50.


@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_no_more_answers_are_kept_than_are_wanted(most: int) -> None:
    answers = CachedAnswers(most)
    for number in range(1, 20):
        answers.keep("one", [number, 50, 51])
        assert 1 <= kept(answers) <= most
    assert answers.follow("one", [19, 50], SuffixRules(24, 1.0, 0.1)).tokens == [51]


def test_no_more_tokens_are_kept_than_there_is_room_for() -> None:
    answers = CachedAnswers(100)
    for _ in range(8):
        answers.keep("one", list(range(MOST_KEPT // 4 + 1)))
        kept(answers)


def test_a_long_text_is_read_in_pieces() -> None:
    text = Text([*range(1, 3 * MOST_READ), 1, 2, 3])
    drafter = source().drafter(text)
    for _ in range(4):
        offer = drafter.offer()
    assert offer == Offer("lookup", 3)


@given(st.lists(st.integers(0, 2), max_size=60), st.lists(st.integers(0, 2), max_size=20), st.integers(1, 8))
def test_every_suffix_proposal_has_followed_the_last_token_before(
    text: list[int], earlier: list[int], most: int
) -> None:
    asked = source()
    answer(asked, "one", earlier)
    _, tokens = proposed(text, asked, most=most)
    if not tokens:
        assert not text or text[-1] not in text[:-1] + earlier[:-1]
        return
    token, last = tokens[0], text[-1]
    pairs = [*pairwise(text), *pairwise(earlier)]
    assert (last, token) in pairs
    assert len(tokens) <= most


@pytest.mark.parametrize("tenant", ["", "one"])
def test_suffix_drafts_leave_the_text_of_the_target_unchanged(
    run: Run, tokenizer: Tokenizer, tenant: str
) -> None:
    language = babble(6, context=2)
    target = ScriptedExecutor(TARGET, lambda sequence: language(sequence[-2:]))

    async def main() -> None:
        coordinator = assemble(target, None, tokenizer, drafting=SUFFIX)
        for prompt in ([1, 2, 3], [1, 2, 3], [4, 1, 2]):
            wanted = CompletionRequest(
                prompt_token_ids=prompt, max_tokens=60, end_id=NO_END, num_draft_tokens=6, tenant=tenant
            )
            text = list(prompt)
            for _ in range(60):
                text.append(target.next_token(text))
            assert (await coordinator.complete(wanted)).token_ids == text[len(prompt) :]
        counts = coordinator.stats.by_origin
        assert counts["lookup"].num_accepted_draft_tokens > 20
        assert bool(counts["earlier_answers"].num_accepted_draft_tokens) == bool(tenant)

    run(main())
