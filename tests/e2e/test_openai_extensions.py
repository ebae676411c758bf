"""What vLLM's clients ask of OpenAI's API beyond its chats and completions, and its responses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest

import trtspec
from tests.e2e.conftest import IN_PROCESS, Deploy
from tests.e2e.openai_requests import GOOD, ask, error_of
from tests.e2e.test_openai import CHAT, MESSAGES, MODEL, PROMPT
from trtspec.serving.tokenizer import Tokenizer

pytestmark = IN_PROCESS


@pytest.fixture(scope="module")
def client(server: Deploy) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.api, api_key="none", max_retries=0) as client:
        yield client


def test_a_text_ends_in_a_token_and_may_include_it(client: openai.OpenAI, tiny_build: Any) -> None:
    tokenizer = Tokenizer.load(tiny_build / "tokenizer")
    asked: Any = {"model": MODEL, "prompt": PROMPT, "max_tokens": 40, "temperature": 0}
    whole = client.completions.create(**asked).choices[0].text
    told = tokenizer.encode(whole, add_special_tokens=False)
    stop = told[len(told) // 2]
    cut = client.completions.create(**asked, extra_body={"stop_token_ids": [stop]}).choices[0]
    more = {"stop_token_ids": [stop], "include_stop_str_in_output": True}
    included = client.completions.create(**asked, extra_body=more).choices[0]
    assert cut.finish_reason == included.finish_reason == "stop"
    assert len(cut.text) < len(whole)
    assert whole.startswith(included.text)
    assert included.text == cut.text + tokenizer.bytes_of(stop).decode()


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"guided_choice": ["one", 'tw"o']}, r'one|tw"o'),
        ({"structured_outputs": {"choice": ["red", "blue"]}}, "red|blue"),
        ({"structured_outputs": {"regex": "[0-9]{3}"}}, "[0-9]{3}"),
        ({"guided_grammar": 'root ::= "a" "b"'}, "ab"),
        ({"guided_json": {"enum": [7]}}, "7"),
    ],
)
def test_an_answer_has_the_form_that_vllms_clients_ask_for(
    client: openai.OpenAI, form: dict[str, Any], expected: str
) -> None:
    made = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=24, extra_body=form)
    assert re.fullmatch(expected, made.choices[0].text)


def test_an_answer_goes_on_with_the_last_message(client: openai.OpenAI, server: Deploy) -> None:
    messages: Any = [*MESSAGES, {"role": "assistant", "content": "class Stack:\n    def push"}]
    more = {"continue_final_message": True}
    made = client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=24, temperature=0, extra_body=more
    )
    prompt = CHAT + "class Stack:\n    def push"
    assert made.choices[0].message.content == server.generate(prompt, max_tokens=24, add_special_tokens=False)


def test_texts_become_tokens_and_tokens_texts(server: Deploy, tiny_build: Any) -> None:
    tokenizer = Tokenizer.load(tiny_build / "tokenizer")

    def asked(path: str, **body: Any) -> Any:
        status, _, said = ask(server.api_port, path, json.dumps({"model": MODEL, **body}).encode())
        assert status == 200, said
        return json.loads(said)

    made = asked("/tokenize", prompt=PROMPT, return_token_strs=True)
    ids = tokenizer.encode(PROMPT)
    assert (made["tokens"], made["count"]) == (ids, len(ids))
    assert made["token_strs"] == [tokenizer.name_of(token) for token in ids]
    assert asked("/detokenize", tokens=ids) == {"prompt": PROMPT}
    chat = asked("/tokenize", messages=MESSAGES)
    assert chat["tokens"] == tokenizer.encode(CHAT, add_special_tokens=False)
    with openai.OpenAI(base_url=server.api, api_key="none") as client:
        (card,) = client.models.list().data
    assert card.model_dump()["max_model_len"] == chat["max_model_len"] > 1000


def test_version_and_ping(server: Deploy) -> None:
    assert json.loads(ask(server.api_port, "/version", None, "GET")[2]) == {"version": trtspec.__version__}
    assert ask(server.api_port, "/ping", None, "GET")[0] == 200


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"guided_regex": "a", "guided_choice": ["b"]}, "only one of them"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "only one of them"),
        ({"structured_outputs": {}}, "structured_outputs"),
    ],
)
def test_a_completion_with_an_impossible_extension_is_answered_with_status_400(
    server: Deploy, body: dict[str, Any], says: str
) -> None:
    status, _, said = ask(server.api_port, "/v1/completions", json.dumps({**GOOD, **body}).encode())
    assert status == 400
    assert says in error_of(said)["message"]


def test_a_response_is_the_same_answer_as_a_chats(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "temperature": 0, "max_output_tokens": 24}
    said: Any = [{"role": "user", "content": "class Stack:"}]
    made = client.responses.create(**asked, instructions="# A module.", input=said, store=False)
    chat = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "system", "content": "# A module."}, *said],
        temperature=0,
        max_completion_tokens=24,
    )
    assert made.output_text == chat.choices[0].message.content
    assert (made.status, made.model) == ("incomplete", MODEL)
    assert made.usage
    assert chat.usage
    assert made.usage.input_tokens == chat.usage.prompt_tokens

    with client.responses.stream(**asked, instructions="# A module.", input=said) as stream:
        events = list(stream)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    last = events[-1]
    assert len(deltas) > 3
    assert last.type == "response.incomplete"
    assert "".join(deltas) == last.response.output_text == made.output_text


def test_a_response_has_the_form_of_its_schema(client: openai.OpenAI, tiny_build: Any) -> None:
    form: Any = {"format": {"type": "json_schema", "name": "n", "schema": {"enum": [7, 8]}}}
    made = client.responses.create(model=MODEL, input="a", text=form)
    assert made.output_text in ("7", "8")
    assert made.status == "completed"


def test_responses_are_not_kept(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="stores no responses"):
        client.responses.retrieve("resp_1")
    with pytest.raises(openai.BadRequestError, match="stores no responses"):
        client.responses.create(model=MODEL, input="a", previous_response_id="resp_1")
