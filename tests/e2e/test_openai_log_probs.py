"""The likeliest tokens at each place in OpenAI's forms, held to transformers on the same weights."""

from __future__ import annotations

from typing import Any

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.e2e.conftest import TINY, Deploy

MODEL = "speculative_llm"
PROMPT = "def fib(n):\n"
LENGTH, TOP = 24, 4
CLOSE = 1e-3
ASKED: Any = {"model": MODEL, "max_tokens": LENGTH, "temperature": 0}
CHAT: Any = {**ASKED, "messages": [{"role": "user", "content": PROMPT}], "logprobs": True}
TEXT: Any = {**ASKED, "prompt": PROMPT}
IN_PROCESS = pytest.mark.parametrize("tiny_recipe", ["in_process"], indirect=True)


@pytest.fixture(scope="module")
def client(server: Deploy) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.api, api_key="none", max_retries=0)


def expected(prompt: str) -> tuple[list[list[str]], list[list[float]]]:
    """The texts of the likeliest tokens at each place of the target's own greedy text, and their numbers."""
    model = AutoModelForCausalLM.from_pretrained(TINY / "target", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(TINY / "target")
    row = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"]
    made = model.generate(row, attention_mask=torch.ones_like(row), max_new_tokens=LENGTH, do_sample=False)
    with torch.inference_mode():
        values, ids = model(made).logits[0, row.shape[1] - 1 : -1].log_softmax(-1).topk(TOP)
    return [[tokenizer.decode([one]) for one in own] for own in ids.tolist()], values.tolist()


@IN_PROCESS
def test_a_chat_tells_them_whole_and_streamed(client: openai.OpenAI) -> None:
    """The text comes of drafts, accepted and rejected."""
    logged = client.chat.completions.create(**CHAT, top_logprobs=TOP).choices[0].logprobs
    assert logged
    assert logged.content
    tokenizer = AutoTokenizer.from_pretrained(TINY / "target")
    prompt = tokenizer.apply_chat_template(CHAT["messages"], tokenize=False, add_generation_prompt=True)
    for said, texts, values in zip(logged.content, *expected(prompt), strict=True):
        assert [other.token for other in said.top_logprobs] == texts
        assert [other.logprob for other in said.top_logprobs] == pytest.approx(values, abs=CLOSE)
        # It is greedy.
        assert (said.token, said.logprob) == (texts[0], said.top_logprobs[0].logprob)
        read = [bytes(other.bytes or ()).decode(errors="replace") for other in said.top_logprobs]
        assert read == texts

    told: list[Any] = []
    for chunk in client.chat.completions.create(**CHAT, top_logprobs=TOP, stream=True):
        if chunk.choices[0].logprobs:
            told += chunk.choices[0].logprobs.content or []
    assert [said.token for said in told] == [said.token for said in logged.content]
    for said, whole in zip(told, logged.content, strict=True):
        assert [other.token for other in said.top_logprobs] == [other.token for other in whole.top_logprobs]


@IN_PROCESS
def test_a_completion_has_the_token_that_came_among_them(client: openai.OpenAI) -> None:
    made = client.completions.create(**{**TEXT, "temperature": 1}, logprobs=2, seed=1, n=2)
    sizes = set()
    for choice in made.choices:
        assert choice.logprobs
        assert choice.logprobs.tokens
        assert choice.logprobs.token_logprobs
        assert choice.logprobs.top_logprobs
        assert "".join(choice.logprobs.tokens) == choice.text
        told = choice.logprobs.tokens, choice.logprobs.token_logprobs, choice.logprobs.top_logprobs
        for token, value, likeliest in zip(*told, strict=True):
            assert likeliest[token] == value
            sizes.add(len(likeliest))
    # A sampled token is not always one of the two likeliest.
    assert sizes == {2, 3}


@IN_PROCESS
@pytest.mark.parametrize(
    ("values", "param"),
    [({"logprobs": 6}, "logprobs"), ({"logprobs": -1}, "logprobs")],
)
def test_a_completion_has_at_most_five(client: openai.OpenAI, values: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**TEXT, **values)
    assert caught.value.param == param


@IN_PROCESS
@pytest.mark.parametrize("values", [{"top_logprobs": 21}, {"logprobs": False, "top_logprobs": 2}])
def test_a_chat_has_at_most_twenty_with_the_others(client: openai.OpenAI, values: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{**CHAT, **values})
    assert caught.value.param == "top_logprobs"


@pytest.mark.sweep
@pytest.mark.parametrize("tiny_recipe", ["bls"], indirect=True)
def test_an_engine_without_other_likely_tokens_refuses_top_logprobs(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="reports no others") as caught:
        client.chat.completions.create(**CHAT, top_logprobs=1)
    assert caught.value.param == "top_logprobs"
    assert client.chat.completions.create(**CHAT).choices[0].logprobs


def of_prompt(row: list[int]) -> Any:
    """transformers' logarithms of softmax after each token of a prompt, float32 `[tokens, vocabulary]`."""
    model = AutoModelForCausalLM.from_pretrained(TINY / "target", dtype=torch.float32)
    with torch.inference_mode():
        return model(torch.tensor([row])).logits[0].log_softmax(-1)


LONG = "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\n" * 12


@IN_PROCESS
@pytest.mark.parametrize("is_tokens", [True, False])
def test_lm_evaluation_harness_gets_the_log_probabilities_of_the_prompt(
    client: openai.OpenAI, is_tokens: bool
) -> None:
    """The body is that of its `local-completions` (lm_eval 0.4.13) for a task of likelihoods."""
    row: list[int] = AutoTokenizer.from_pretrained(TINY / "target").encode(LONG)
    body: Any = {"temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    made = client.completions.create(model=MODEL, prompt=[row] if is_tokens else LONG, **body)
    (choice,) = made.choices
    logged = choice.logprobs
    assert logged
    assert len(row) > 128
    right = of_prompt(row)
    expected = [float(right[place, token]) for place, token in enumerate(row[1:])]
    values: Any = logged.token_logprobs
    top: Any = logged.top_logprobs
    assert (values[0], top[0]) == (None, None)
    # As it reads them: all but the context before, and the one token that was generated.
    assert values[1:-1] == pytest.approx(expected, abs=CLOSE)
    are_likeliest = [float(right[place].max()) == value for place, value in enumerate(expected)]
    found = [value == max(own.values()) for value, own in zip(values[1:-1], top[1:-1], strict=True)]
    assert found == are_likeliest
    assert choice.text == "".join(logged.tokens or ())
    assert choice.text.startswith(LONG)
    assert made.usage
    assert made.usage.prompt_tokens == len(row)


@IN_PROCESS
@pytest.mark.parametrize("stream", [False, True])
def test_no_tokens_with_echo_are_the_prompt_alone(client: openai.OpenAI, stream: bool) -> None:
    """As OpenAI's API of text scores a prompt; without log-probabilities it is the text itself."""
    create, prompts = client.completions.create, [LONG, PROMPT]
    asked: Any = {"model": MODEL, "prompt": prompts, "echo": True, "temperature": 0}
    ends = {one.index: one.logprobs for one in create(**asked, max_tokens=1, logprobs=1).choices}
    said: Any = create(**asked, max_tokens=0, logprobs=1, stream=stream)
    found = [choice for chunk in (said if stream else [said]) for choice in chunk.choices]
    assert [one.text for one in sorted(found, key=lambda one: one.index)] == prompts
    for one in found:
        assert one.finish_reason == "length"
        assert one.logprobs.tokens == ends[one.index].tokens[:-1]
        assert one.logprobs.token_logprobs[1:] == pytest.approx(
            ends[one.index].token_logprobs[1:-1], abs=CLOSE
        )
        assert len(one.logprobs.top_logprobs) == len(one.logprobs.tokens)
    said = create(**asked, max_tokens=0)
    assert [choice.text for choice in said.choices] == prompts
    assert said.usage.completion_tokens == 0
    with pytest.raises(openai.BadRequestError, match="without echo") as caught:
        create(model=MODEL, prompt=PROMPT, max_tokens=0)
    assert caught.value.param == "max_tokens"


@IN_PROCESS
def test_vllms_field_has_the_prompts_log_probabilities_by_token_id(client: openai.OpenAI) -> None:
    tokenizer = AutoTokenizer.from_pretrained(TINY / "target")
    asked: Any = {"extra_body": {"prompt_logprobs": 2}}
    text: Any = client.completions.create(**TEXT, **asked)
    chat: Any = client.chat.completions.create(**{**CHAT, "logprobs": False}, **asked)
    prompt = tokenizer.apply_chat_template(CHAT["messages"], tokenize=False, add_generation_prompt=True)
    for said, row in (
        (text.choices[0].prompt_logprobs, tokenizer.encode(PROMPT)),
        (chat.prompt_logprobs, tokenizer.encode(prompt, add_special_tokens=False)),
    ):
        right = of_prompt(row)
        assert said[0] is None
        for place, (own, token) in enumerate(zip(said[1:], row[1:], strict=True)):
            likeliest = right[place].topk(2)
            for rank, (value, other) in enumerate(zip(*map(list, likeliest), strict=True), 1):
                found = own[str(int(other))]
                assert (found["rank"], found["logprob"]) == (rank, pytest.approx(float(value), abs=CLOSE))
            assert own[str(token)]["logprob"] == pytest.approx(float(right[place, token]), abs=CLOSE)


@pytest.mark.parametrize("tiny_recipe", ["bls"], indirect=True)
def test_an_engine_that_cannot_says_so(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="answers only"):
        client.completions.create(**TEXT, echo=True, logprobs=1)
