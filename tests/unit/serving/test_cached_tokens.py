"""A request is told how many tokens of its prompt were cached, and nothing of other tenants' prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.fakes.languages import TARGET, Run
from tests.fakes.scripted_executor import ScriptedExecutor, babble
from trtspec.serving.assembly import assemble
from trtspec.serving.completion import CompletionRequest
from trtspec.serving.coordinator import TenantTexts
from trtspec.serving.executor import Listener, Request
from trtspec.serving.text import Text, common_prefix
from trtspec.serving.tokenizer import Tokenizer

PROMPT = [number % 50 for number in range(40)]


class Caching(ScriptedExecutor):
    """Has every prompt in its cache from its arrival on, whoever sent it."""

    def __init__(self) -> None:
        super().__init__(TARGET, babble(TARGET.vocab_size))

    def enqueue_request(self, request: Request, listener: Listener) -> int:
        prompt = list(request.input_token_ids)
        earlier = (list(each.input_token_ids) for each in self.requests)
        most = len(prompt) - 1
        reused = max((common_prefix(each, prompt, min(len(each), most)) for each in earlier), default=0)
        return super().enqueue_request(request, lambda said: listener(replace(said, num_reused=reused)))


class CountingTwice(Caching):
    """Counts what it reused of a prompt again, as TensorRT-LLM does after a pause."""

    def enqueue_request(self, request: Request, listener: Listener) -> int:
        return super().enqueue_request(request, lambda said: listener(replace(said, num_reused=80)))


def test_more_than_the_prompt_is_not_told(run: Run, tokenizer: Tokenizer) -> None:
    assert told(run, tokenizer, ("", PROMPT), engine=CountingTwice) == [39]


def told(
    run: Run, tokenizer: Tokenizer, *asked: tuple[str, Sequence[int]], engine: type[Caching] = Caching
) -> list[int | None]:
    """What requests of these tenants with these prompts are told, one after the other."""

    async def main() -> list[int | None]:
        coordinator, counts = assemble(engine(), None, tokenizer), []
        for tenant, prompt in asked:
            request = CompletionRequest(prompt_token_ids=prompt, max_tokens=4, tenant=tenant)
            completion = (await coordinator.complete(request)).completion
            assert completion
            counts.append(completion.num_cached_tokens)
        return counts

    counts: list[int | None] = run(main())
    return counts


@pytest.mark.parametrize("tenant", ["", "a"])
def test_one_tenant_is_told_all(run: Run, tokenizer: Tokenizer, tenant: str) -> None:
    asked = [(tenant, PROMPT), (tenant, PROMPT), (tenant, [*PROMPT, 7]), (tenant, [9, *PROMPT])]
    assert told(run, tokenizer, *asked) == [0, 39, 40, 0]


def test_cached_tokens_that_only_another_tenant_sent_are_not_told(run: Run, tokenizer: Tokenizer) -> None:
    other = [*PROMPT[:20], 77, 78, 79]
    asked = [
        ("a", PROMPT),
        ("b", PROMPT),
        ("b", PROMPT),
        ("", other),
        ("b", other),
        ("", other),
        ("a", other),
    ]
    # From the second tenant on each is told of what it sent since then.
    assert told(run, tokenizer, *asked) == [0, 0, 39, 0, 20, 22, 0]


def test_who_began_alone_is_told_nothing_once_another_came() -> None:
    """Meanwhile the other may have sent the same prompt."""
    texts, mine = TenantTexts(), Text(PROMPT)
    own = texts.begin("a", mine)
    assert own is None
    texts.begin("b", Text(PROMPT))
    assert texts.end("a", mine, own, 30) is None
    assert texts.end("b", Text(PROMPT), 0, None) is None


def test_the_oldest_texts_go_first() -> None:
    texts = TenantTexts(most=3, most_tokens=100)
    for tenant in "ab":
        texts.begin(tenant, Text([1]))
    for first in range(3):
        texts.end("a", Text([first, *PROMPT]), 0, 0)
    # Of 41 tokens each, of which the last one was not computed, only two fit.
    assert [texts.begin("a", Text([first, *PROMPT])) for first in range(3)] == [0, 40, 40]
    for first in range(3, 6):
        texts.end("a", Text([first, 1]), 0, 0)
    assert [texts.begin("a", Text([first, 1])) for first in range(6)] == [0, 0, 0, 1, 1, 1]


def test_a_number_that_shares_bytes_is_another_token() -> None:
    texts = TenantTexts()
    texts.begin("b", Text([1]))
    texts.begin("a", Text([1]))
    texts.end("a", Text([0x0102, 0x0303, 5, 9]), 0, 0)
    assert texts.begin("a", Text([0x0102, 0x0403, 5])) == 1
