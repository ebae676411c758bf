"""Requests over made-up languages, and what the target alone would say to each."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import tokenizers

from tests.fakes.languages import TARGET, chatter
from tests.fakes.scripted_executor import NextToken, choose
from trtspec.serving.completion import CompletionRequest, Delta, EndReason
from trtspec.serving.tokenizer import Tokenizer

STOPS = ["ab", "aa", "hello", "é", "b🙂", "o\n", "lo", "zzz"]
Cases = tuple[list[CompletionRequest], dict[int, NextToken]]


@dataclass
class Expected:
    """What the target alone would say, cut by looking at the whole."""

    text: str
    token_ids: list[int]
    end_reason: EndReason


def expect(
    request: CompletionRequest,
    language: NextToken,
    tokenizer: Tokenizer,
    decode: Callable[..., str],
    vocab_size: int = TARGET.vocab_size,
) -> Expected:
    end_ids = tokenizer.end_ids if request.end_id is None else (request.end_id,)
    bad_words = [tokenizer.encode(word, add_special_tokens=False) for word in request.bad_words]
    ends, seed = [[end_id] for end_id in end_ids], request.sampling.seed
    sequence = list(request.prompt_token_ids or ())
    said: list[int] = []
    reason = EndReason.LENGTH
    while len(said) < request.max_tokens:
        banned = bad_words + (ends if len(said) < (request.sampling.min_tokens or 0) else [])
        number = None if request.sampling.is_greedy or seed is None else (seed + len(said)) % 2**64
        token_id = choose(language, sequence + said, vocab_size, banned, number)
        if token_id in end_ids:
            reason = EndReason.END_ID
            break
        said.append(token_id)
    for length in range(1, len(said) + 1):
        text = decode(said[:length])
        found = [(text.find(stop) + len(stop), text.find(stop)) for stop in request.stop if stop in text]
        if found:
            return Expected(text[: min(found)[1]], said[:length], EndReason.STOP)
    return Expected(decode(said), said, reason)


def assert_is(delta: Delta, expected: Expected) -> None:
    assert delta.completion is not None
    assert (delta.text, delta.token_ids, delta.completion.end_reason) == (
        expected.text,
        expected.token_ids,
        expected.end_reason,
    )
    assert delta.completion.num_output_tokens == len(expected.token_ids)


def make_cases(byte_level: tokenizers.Tokenizer) -> Cases:
    """Requests over random languages with characters that are torn apart, stop strings and end tokens."""
    dice = random.Random(7)
    torn = [token_id for char in "é🙂漢" for token_id in byte_level.encode(char).ids]
    words = [
        *byte_level.encode("ab\nlo").ids,
        *(byte_level.token_to_id(word) for word in ("hello", "he", "ll")),
    ]
    special = [byte_level.token_to_id(token) for token in ("<|end|>", "<|turn|>", "<call me>")]
    requests, languages = [], {}
    for first in range(200):
        vocabulary = dice.choices(torn, k=dice.randrange(4)) + dice.choices(words, k=dice.randrange(2, 30))
        if dice.random() < 0.6:
            vocabulary.append(dice.choice(special))
        languages[first] = chatter(vocabulary, first)
        requests.append(
            CompletionRequest(
                prompt_token_ids=[first, *dice.choices(range(256), k=dice.randrange(20))],
                max_tokens=dice.randrange(1, 80),
                num_draft_tokens=dice.choice([None, 0, *range(1, 9)]),
                stop=tuple(dice.sample(STOPS, dice.randrange(3))),
            )
        )
    return requests, languages
