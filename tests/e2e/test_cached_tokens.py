"""What OpenAI's API tells of the tokens of a prompt that the KV cache had."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.e2e.conftest import ONLY_IN_PROCESS, Deploy, Until

pytestmark = ONLY_IN_PROCESS
MODEL = "speculative_llm"
NAMES = ("queries", "hits")


@pytest.fixture(scope="module")
def client(server: Deploy) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.api, api_key="none", max_retries=0) as client:
        yield client


def test_usage_says_what_the_engine_counts(client: openai.OpenAI, server: Deploy, until: Until) -> None:
    """Another tenant who has the same prompt is told nothing of it."""
    prompt = "".join(f"x{number} = {number * 7919}\n" for number in range(40))

    def asked(**values: Any) -> tuple[int, int, int]:
        """What is told, what the engine counts, and the number of prompt tokens."""
        queries, hits = (server.metric(f"prefix_cache_{name}", engine="target") for name in NAMES)
        made = client.completions.create(
            model=MODEL, prompt=prompt, max_tokens=1, extra_body={"num_draft_tokens": 0, **values}
        )
        assert made.usage
        assert made.usage.prompt_tokens_details
        told, given = made.usage.prompt_tokens_details.cached_tokens, made.usage.prompt_tokens
        assert told is not None
        until(lambda: server.metric("prefix_cache_queries", engine="target") == queries + given, "its count")
        return told, int(server.metric("prefix_cache_hits", engine="target") - hits), given

    first, second = asked(), asked()
    assert first[:2] == (0, 0)
    assert second[0] == second[1] == second[2] - 1
    other, again = asked(cache_salt="other"), asked(cache_salt="other")
    assert other == (0, second[1], second[2])
    assert again == second


def test_a_response_says_what_the_cache_had(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "input": "# What the cache had.\n" * 9, "max_output_tokens": 20}
    first, second = (client.responses.create(**asked).usage for _ in range(2))
    assert first
    assert second
    assert first.input_tokens_details.cached_tokens < 9
    assert second.input_tokens_details.cached_tokens == second.input_tokens - 1


def test_a_stream_says_it_at_its_end(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": "# Streamed.\n" * 9}]}
    asked |= {"max_tokens": 20, "stream": True, "stream_options": {"include_usage": True}}
    told = []
    for _ in range(2):
        *_, last = client.chat.completions.create(**asked)
        assert last.usage
        assert last.usage.prompt_tokens_details
        told.append((last.usage.prompt_tokens_details.cached_tokens, last.usage.prompt_tokens))
    (first, _), (second, given) = told
    assert first < 9
    assert second == given - 1
