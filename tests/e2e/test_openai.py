"""OpenAI's API of a deployment, asked by the official client and by curl."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import openai
import pytest
from jsonschema import validate
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel, Field

from tests.e2e.conftest import ENDLESS, IN_PROCESS, Deploy
from tests.e2e.test_guides import BLANKS, SCHEMA
from trtspec.serving.tokenizer import Tokenizer

pytestmark = IN_PROCESS
MODEL = "speculative_llm"
PROMPT = "def fib(n):\n"
MESSAGES: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "# A module of queues."},
    {"role": "user", "content": [{"type": "text", "text": "# A queue with a lock.\n"}]},
    {"role": "assistant", "content": "class Queue:\n    pass"},
    {"role": "user", "content": "\nclass Stack:"},
]
CHAT = "<|endoftext|># A module of queues.\n# A queue with a lock.\nclass Queue:\n    pass\n\nclass Stack:\n"


@pytest.fixture(scope="module")
def client(server: Deploy) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.api, api_key="none", max_retries=0) as client:
        yield client


def no_blanks(tokenizer: Tokenizer) -> dict[str, int]:
    """A bias for a model that would write nothing but space between the parts of JSON."""
    found = [tokenizer.encode(blank, add_special_tokens=False) for blank in BLANKS]
    return {str(ids[0]): -100 for ids in found if len(ids) == 1}


def test_a_completion_is_the_models_own(client: openai.OpenAI, server: Deploy) -> None:
    made = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=24, temperature=0)

    (choice,) = made.choices
    assert choice.text == server.generate(PROMPT, max_tokens=24)
    assert (choice.finish_reason, made.object, made.model) == ("length", "text_completion", MODEL)
    assert made.usage
    assert (made.usage.completion_tokens, made.usage.total_tokens) == (24, made.usage.prompt_tokens + 24)


def test_a_chat_is_its_templates_prompt_with_one_beginning(client: openai.OpenAI, server: Deploy) -> None:
    made = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_completion_tokens=24, temperature=0
    )

    (choice,) = made.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == server.generate(CHAT, max_tokens=24, add_special_tokens=False)
    # The same prompt of which the tokenizer would begin the text has no more tokens.
    plain = client.completions.create(model=MODEL, prompt=CHAT, max_tokens=1)
    assert made.usage
    assert plain.usage
    assert made.usage.prompt_tokens == plain.usage.prompt_tokens


def test_a_stream_is_the_same_text_with_usage_at_its_end(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "messages": MESSAGES, "max_tokens": 40, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )

    *told, last = chunks
    assert len(told) > 3
    assert told[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in told)
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in told][-2:] == [None, "length"]
    assert last.choices == []
    assert last.usage
    assert whole.usage
    # What the cache had depends on earlier requests.
    whole.usage.prompt_tokens_details = last.usage.prompt_tokens_details
    assert last.usage == whole.usage
    assert all(chunk.usage is None for chunk in told)
    assert len({chunk.id for chunk in chunks}) == 1


def test_without_the_option_a_stream_has_no_usage(client: openai.OpenAI) -> None:
    chunks = list(client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=5, stream=True))

    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


def test_the_asynchronous_client_streams_many_at_once(server: Deploy) -> None:
    async def run() -> list[str]:
        async with openai.AsyncOpenAI(base_url=server.api, api_key="none", max_retries=0) as client:

            async def one(number: int) -> str:
                text = ""
                stream = await client.completions.create(
                    model=MODEL, prompt=f"class C{number}:\n", max_tokens=20, temperature=0, stream=True
                )
                async for chunk in stream:
                    text += chunk.choices[0].text
                return text

            return await asyncio.gather(*(one(number) for number in range(24)))

    assert asyncio.run(run()) == [server.generate(f"class C{n}:\n", max_tokens=20) for n in range(24)]


def test_stop_strings_are_not_part_of_the_text(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "prompt": PROMPT, "max_tokens": 60, "temperature": 0}
    whole = client.completions.create(**asked).choices[0].text
    stop = whole[20:23]
    cut = client.completions.create(**asked, stop=stop).choices[0]

    assert cut.text == whole[: whole.index(stop)]
    assert cut.finish_reason == "stop"


def test_a_seed_repeats_a_text_and_choices_differ(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "prompt": PROMPT, "max_tokens": 16, "n": 3, "seed": -5}
    first, second = (client.completions.create(**asked) for _ in range(2))

    texts = [choice.text for choice in first.choices]
    assert texts == [choice.text for choice in second.choices]
    assert len(set(texts)) == 3
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    one = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=1)
    assert first.usage
    assert one.usage
    # The prompt of several choices counts once.
    assert first.usage.prompt_tokens == one.usage.prompt_tokens
    assert first.usage.completion_tokens == 48


def test_several_prompts_have_their_choices_in_order(client: openai.OpenAI, server: Deploy) -> None:
    prompts = ["import ", "class A", "def "]
    asked: Any = {"model": MODEL, "prompt": prompts, "max_tokens": 8, "temperature": 0, "n": 2}
    made = client.completions.create(**asked)
    texts = dict.fromkeys(range(6), "")
    for chunk in client.completions.create(**asked, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text

    expected = [server.generate(prompt, max_tokens=8) for prompt in prompts for _ in range(2)]
    assert [choice.text for choice in made.choices] == expected
    assert list(texts.values()) == expected


def test_a_prompt_of_token_ids_is_completed_and_counted_as_it_is(
    client: openai.OpenAI, tiny_build: Any
) -> None:
    """They are the prompt as it is: its usage counts them, and no beginning is put before them."""
    tokenizer = Tokenizer.load(tiny_build / "tokenizer")
    prompts = [PROMPT, "class A:\n"]
    ids = [tokenizer.encode(prompt) for prompt in prompts]
    asked: Any = {"model": MODEL, "max_tokens": 12, "temperature": 0}
    said = [client.completions.create(**asked, prompt=prompt) for prompt in prompts]
    assert client.completions.create(**asked, prompt=ids[0]).choices[0].text == said[0].choices[0].text
    both = client.completions.create(**asked, prompt=ids)
    assert [choice.text for choice in both.choices] == [made.choices[0].text for made in said]
    assert both.usage
    assert both.usage.prompt_tokens == sum(map(len, ids))
    for chunk in client.completions.create(**asked, prompt=[ids[0]], stream=True):
        assert said[0].choices[0].text.startswith(chunk.choices[0].text)
        break
    with pytest.raises(openai.BadRequestError, match="token ids from 0 to") as caught:
        client.completions.create(**asked, prompt=[1, 10**6])
    assert caught.value.param == "prompt"


def test_echo_begins_with_the_prompt(client: openai.OpenAI) -> None:
    made = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=4, echo=True)
    assert made.choices[0].text.startswith(PROMPT)


def test_log_probabilities_have_their_tokens(client: openai.OpenAI, server: Deploy) -> None:
    asked: Any = {"model": MODEL, "max_tokens": 24, "temperature": 0}
    chat = client.chat.completions.create(**asked, messages=MESSAGES, logprobs=True).choices[0]
    _, triton = server.post(
        {"text_input": CHAT, "max_tokens": 24, "add_special_tokens": False, "return_log_probs": True}
    )
    assert chat.logprobs
    assert chat.logprobs.content
    assert [token.logprob for token in chat.logprobs.content] == pytest.approx(triton["output_log_probs"])
    said = b"".join(bytes(token.bytes or ()) for token in chat.logprobs.content)
    assert said.decode() == chat.message.content
    assert "".join(token.token for token in chat.logprobs.content) == chat.message.content

    text = ""
    tokens: list[str] = []
    for chunk in client.completions.create(**asked, prompt=PROMPT, logprobs=0, stream=True):
        text += chunk.choices[0].text
        if chunk.choices[0].logprobs:
            tokens += chunk.choices[0].logprobs.tokens or []
    assert "".join(tokens) == text


def test_any_token_may_have_a_bias(client: openai.OpenAI, server: Deploy) -> None:
    """By its id: also one that no text says, such as the end."""
    asked: Any = {"model": MODEL, "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    _, said = server.post({"text_input": PROMPT, "max_tokens": 8, "return_log_probs": True})
    banned = said["output_ids"][0]
    made = client.completions.create(**asked, logit_bias={str(banned): -100, "0": -100})
    assert made.choices[0].text != said["text_output"]
    ended = client.completions.create(**asked, logit_bias={"0": 100}).choices[0]
    assert (ended.text, ended.finish_reason) == ("", "stop")
    repeated = client.completions.create(**asked, logit_bias={str(banned): 100}).choices[0].text
    assert repeated == 8 * repeated[: len(repeated) // 8] != ""
    with pytest.raises(openai.BadRequestError, match="token ids from 0 to") as caught:
        client.completions.create(**asked, logit_bias={"999999": 1})
    assert caught.value.param == "logit_bias"


def test_structured_output_is_of_its_schema(client: openai.OpenAI, tiny_build: Any) -> None:
    tokenizer = Tokenizer.load(tiny_build / "tokenizer")
    wanted: Any = {
        "type": "json_schema",
        "json_schema": {"name": "settings", "schema": SCHEMA, "strict": True},
    }
    for stream in (False, True):
        asked: Any = {"model": MODEL, "messages": MESSAGES, "seed": 3, "max_tokens": 200}
        asked |= {"response_format": wanted, "logit_bias": no_blanks(tokenizer)}
        if stream:
            chunks = client.chat.completions.create(**asked, stream=True)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        else:
            text = client.chat.completions.create(**asked).choices[0].message.content
        validate(json.loads(text), SCHEMA)


def test_the_clients_own_parser_reads_an_answer(client: openai.OpenAI, tiny_build: Any) -> None:
    class Settings(BaseModel):
        name: Literal["queue", "stack"]
        sizes: Annotated[list[int], Field(max_length=2)]

    asked: Any = {"model": MODEL, "messages": MESSAGES, "max_tokens": 200, "seed": 5}
    asked |= {"logit_bias": no_blanks(Tokenizer.load(tiny_build / "tokenizer"))}
    made = client.chat.completions.parse(**asked, n=3, response_format=Settings)
    assert all(isinstance(choice.message.parsed, Settings) for choice in made.choices)
    with client.chat.completions.stream(**asked, response_format=Settings) as events:
        assert events.get_final_completion().choices[0].message.parsed == made.choices[0].message.parsed


def test_acceptance_is_told_as_vllm_writes_it(client: openai.OpenAI, server: Deploy) -> None:
    asked: Any = {"model": MODEL, "prompt": PROMPT, "max_tokens": 60, "temperature": 0}
    whole: Any = client.completions.create(**asked)
    told = whole.metrics["speculative_decoding"]
    _, triton = server.post({"text_input": PROMPT, "max_tokens": 60, "return_perf_metrics": True})

    histogram = told["acceptance_histogram"]
    assert told["num_spec_tokens"] == 4
    assert len(histogram) == 5
    assert sum(histogram) == told["num_spec_steps"] > 0
    assert sum(j * count for j, count in enumerate(histogram)) == told["num_accepted_draft_tokens"]
    assert told["num_accepted_draft_tokens"] == triton["total_accepted_draft_tokens"]
    assert told["num_draft_tokens"] == triton["total_draft_tokens"]
    assert told["draft_acceptance_rate"] == pytest.approx(triton["acceptance_rate"])

    *_, last = client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    assert last.model_extra
    assert last.model_extra["metrics"]["speculative_decoding"] == told
    *_, last = client.completions.create(**asked, stream=True)
    assert last.model_extra
    assert last.model_extra["metrics"]["speculative_decoding"] == told


def test_models_and_health(client: openai.OpenAI, server: Deploy) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "trtspec"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")
    asked = ["curl", "-s", "-w", "%{http_code}", server.api.removesuffix("/v1") + "/health"]
    assert subprocess.run(asked, capture_output=True, text=True).stdout == "200"


def test_curl_streams_events(server: Deploy) -> None:
    body = json.dumps({"model": MODEL, "prompt": PROMPT, "max_tokens": 8, "stream": True})
    asked = ["curl", "-sN", f"{server.api}/completions", "-H", "Content-Type: application/json", "-d", body]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout

    *events, done, rest = said.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert all(json.loads(event.removeprefix("data: "))["choices"] for event in events)


def test_an_answer_has_an_id_of_its_request(client: openai.OpenAI) -> None:
    made = [client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=1) for _ in range(2)]
    first, second = (one._request_id for one in made)
    assert first
    assert second
    assert first != second
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "a b " * ENDLESS}])
    assert caught.value.request_id
    assert caught.value.code == "context_length_exceeded"


def test_an_error_names_the_field_in_openais_words(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt=PROMPT, stop=["x" * 5000])
    assert caught.value.param == "stop"
    assert caught.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="gpt-4", prompt=PROMPT)
    assert missing.value.code == "model_not_found"
