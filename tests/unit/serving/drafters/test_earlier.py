"""Earlier answers: found again, by their own tenant alone, and no more of them than was allowed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.fakes.languages import TARGET, Run
from tests.fakes.scripted_executor import ScriptedExecutor, babble
from trtspec.serving.assembly import assemble
from trtspec.serving.completion import NO_END, CompletionRequest
from trtspec.serving.drafters.lookup import EarlierAnswers, LookupDrafter, LookupSource
from trtspec.serving.drafters.source import Drafting, Offer
from trtspec.serving.executor import Request
from trtspec.serving.text import Text
from trtspec.serving.tokenizer import Tokenizer

SIZE, MOST = 2, 30
TENANTS = st.sampled_from(["", "one", "two"])
TOKENS = st.lists(st.integers(0, 3), max_size=12)


class Answers(RuleBasedStateMachine):
    """Held against a list of all answers, of which the oldest are dropped, searched from the latest on."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = EarlierAnswers(SIZE, MOST)
        self.kept: list[tuple[str, list[int]]] = []

    @rule(tenant=TENANTS, tokens=TOKENS)
    def keep(self, tenant: str, tokens: list[int]) -> None:
        self.answers.keep(tenant, tokens)
        if tenant and len(tokens) > SIZE:
            self.kept.append((tenant, tokens))
        while sum(len(tokens) for _, tokens in self.kept) > MOST:
            self.kept.pop(0)

    @rule(tenant=TENANTS, text=TOKENS)
    def find(self, tenant: str, text: list[int]) -> None:
        found = self.answers.find(tenant, text)
        wanted = next(self._places(tenant, text), None)
        if found is None:
            assert wanted is None
        else:
            tokens, place = found
            assert wanted == tokens[place:]

    def _places(self, tenant: str, text: list[int]) -> Iterator[list[int]]:
        """What stands behind the last tokens of the text, the latest place first.

        A key that a dropped answer shared with an older one was the dropped one's, so only what a later one
        has is sure; answers are dropped in their order, so the latest place is never gone before an older.
        """
        if len(text) < SIZE:
            return
        for owner, tokens in reversed(self.kept):
            for end in range(len(tokens) - 1, SIZE - 1, -1):
                if owner == tenant and tokens[end - SIZE : end] == text[-SIZE:]:
                    yield tokens[end:]

    @invariant()
    def holds_what_it_may(self) -> None:
        assert self.answers.num_tokens == sum(len(tokens) for _, tokens in self.kept) <= MOST


Answers.TestCase.settings = settings(deadline=None, max_examples=100, stateful_step_count=40)
TestAnswers = Answers.TestCase


def offered(source: LookupSource, tenant: str, tokens: list[int]) -> tuple[Offer | None, LookupDrafter]:
    drafter = source.drafter(Text(tokens), tenant)
    return drafter.offer(), drafter


def told(source: LookupSource, tenant: str, prompt: list[int], answer: list[int]) -> None:
    """A completion of this tenant, from its prompt to its end."""
    text = Text(prompt)
    drafter = source.drafter(text, tenant)
    text.extend(answer)
    drafter.end()


def test_tokens_of_an_earlier_answer_are_proposed_to_the_same_tenant() -> None:
    source = LookupSource(2, 3, earlier_answers=100)
    told(source, "one", [90, 91], [1, 2, 3, 4, 5, 6])
    offer, drafter = offered(source, "one", [70, 1, 2, 3])
    assert offer == Offer("earlier_answers", 3)
    assert asyncio.run(drafter.propose(Request([1], 2), math.inf)) == [4, 5]


@pytest.mark.parametrize("tenant", ["two", ""])
def test_nobody_else_is_told(tenant: str) -> None:
    source = LookupSource(2, 3, earlier_answers=100)
    told(source, "one", [90, 91], [1, 2, 3, 4, 5, 6])
    told(source, "", [90, 91], [1, 2, 3, 4, 5, 6])
    assert offered(source, tenant, [70, 1, 2, 3])[0] is None


def test_prompts_are_not_kept() -> None:
    source = LookupSource(2, 3, earlier_answers=100)
    told(source, "one", [1, 2, 3, 4, 5, 6], [10, 11, 12, 13])
    assert offered(source, "one", [70, 1, 2, 3])[0] is None


def test_none_are_kept_unless_it_is_asked_for() -> None:
    source = LookupSource(2, 3)
    told(source, "one", [90, 91], [1, 2, 3, 4, 5, 6])
    assert offered(source, "one", [70, 1, 2, 3])[0] is None


def test_the_text_itself_comes_first_where_it_says_as_much() -> None:
    source = LookupSource(2, 3, earlier_answers=100)
    told(source, "one", [90, 91], [1, 2, 3, 4, 5, 6])
    assert offered(source, "one", [1, 2, 3, 8, 1, 2, 3])[0] == Offer("lookup", 7)
    assert offered(source, "one", [9, 2, 3, 8, 1, 2, 3])[0] == Offer("earlier_answers", 3)


def test_a_question_that_is_asked_again_is_answered_in_fewer_rounds(run: Run, tokenizer: Tokenizer) -> None:
    """The text is the target's own each time; only the tenant who asked before is served faster."""
    options = {"prompt_lookup_min": 2, "prompt_lookup_max": 4, "earlier_answers": 1000}
    next_token = babble(TARGET.vocab_size)

    async def main() -> None:
        target = ScriptedExecutor(TARGET, next_token)
        coordinator = assemble(target, None, tokenizer, drafting=Drafting("ngram", options))
        accepted = []
        for tenant in ("one", "one", "two", ""):
            asked = CompletionRequest(prompt_token_ids=[5, 17], max_tokens=60, end_id=NO_END, tenant=tenant)
            delta = await coordinator.complete(asked)
            text = [5, 17]
            for _ in range(60):
                text.append(next_token(text))
            assert delta.token_ids == text[2:]
            assert delta.completion is not None
            accepted.append(delta.completion.speculation.num_accepted_draft_tokens)
        first, again, other, nobody = accepted
        assert again > 30 > first == other == nobody

    run(main())
