"""Guided decoding under a real Triton: texts of a grammar, with drafts and without, and refusals."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from jsonschema import validate

from tests.e2e.conftest import IN_PROCESS, ONLY_BLS, ONLY_IN_PROCESS, Deploy

PROMPT = "settings = "
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "size": {"type": "integer", "maximum": 9999, "minimum": 0},
        "tags": {"type": "array", "items": {"enum": ["self", "return", "path"]}, "maxItems": 4},
    },
    "required": ["name", "size", "tags"],
    "additionalProperties": False,
}
REGEX = r"def [a-z_]{3,12}\(self(, [a-z]{2,8}){0,2}\):\n    return [a-z]{1,8}"
GUIDED = {
    "json_schema": {"guided_decoding_guide_type": "json_schema", "guided_decoding_guide": json.dumps(SCHEMA)},
    "regex": {"guided_decoding_guide_type": "regex", "guided_decoding_guide": REGEX},
}
# A grammar of JSON allows any space between its parts, and a model this small writes nothing else.
BLANKS = ["\n", "\n\n", "\n\n\n", "\t", "\r", *(" " * count for count in range(1, 37))]
NO_BLANKS = {"embedding_bias_words": BLANKS, "embedding_bias_weights": [-1e5] * len(BLANKS)}


@ONLY_IN_PROCESS
@pytest.mark.parametrize("name", GUIDED)
def test_a_guided_text_is_of_its_grammar_and_drafts_do_not_change_it(server: Deploy, name: str) -> None:
    body = {"text_input": PROMPT, "max_tokens": 200, "return_perf_metrics": True, **NO_BLANKS}
    body |= GUIDED[name]
    drafted = 0
    for sampling in ({}, {"temperature": 0.9, "seed": 3}):
        asked = [{**body, **sampling, "num_draft_tokens": k} for k in (0, 1, 4, 8)]
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(server.post, asked))
        assert [status for status, _ in answers] == [200] * 4, answers
        text = answers[0][1]["text_output"]
        if name == "regex":
            assert re.fullmatch(REGEX, text)
        else:
            validate(json.loads(text), SCHEMA)
        for _, answer in answers:
            assert answer["text_output"] == text
            assert answer["finish_reason"] == "stop"
            assert "speculation" not in answer
            drafted += answer["total_accepted_draft_tokens"]
    assert drafted > 0


@IN_PROCESS
def test_a_stream_is_the_same_text_beside_free_requests(server: Deploy) -> None:
    body = {"max_tokens": 200, **NO_BLANKS, **GUIDED["json_schema"]}
    with ThreadPoolExecutor(3) as pool:
        free = pool.submit(server.generate, PROMPT, max_tokens=60)
        stream = pool.submit(server.stream, PROMPT, **body)
        whole = pool.submit(server.generate, PROMPT, **body)
    assert "".join(event["text_output"] for event in stream.result()) == whole.result()
    assert free.result() == server.generate(PROMPT, max_tokens=60)


REFUSED = {
    "broken JSON": ("json_schema", '{"type": ', "guided_decoding_guide is refused (it is not JSON"),
    "unknown type of a schema": ("json_schema", '{"type": "word"}', 'Unsupported type "word"'),
    "a grammar of itself": ("ebnf_grammar", "root ::= root", "can begin a text"),
    "a schema of itself": ("json_schema", '{"$ref": "#"}', "can begin a text"),
    "a grammar that ends in nothing": ("ebnf_grammar", 'root ::= "a" dead\ndead ::= dead', "has an end"),
    "a grammar without an end": ("ebnf_grammar", 'root ::= "a" root', "has an end"),
    "a schema without a choice": ("json_schema", '{"anyOf": []}', "anyOf of the schema is empty"),
    "a class of nothing": ("regex", r"[^\x00-\x{10FFFF}]", r"\x cannot be followed at its place"),
    "a negation": ("json_schema", '{"not": {}}', "not of the schema cannot be followed"),
    "a schema elsewhere": (
        "json_schema",
        '{"$ref": "http://127.0.0.1/a.json"}',
        "is outside of the schema",
    ),
    "a schema in a file": ("json_schema", '{"$ref": "file:///etc/passwd"}', "is outside of the schema"),
    "deep schema": ("json_schema", '{"items":' * 3000 + "{}" + "}" * 3000, "nested"),
    "no expression": ("regex", "((((", "parenthesis"),
    "too long": ("regex", "a" * 10**6, "1000000 characters"),
    "unknown type": ("xml", "a", 'guided_decoding_guide_type is "xml"; it must be one of json, json_schema'),
    "no type": ("", "a", "guided_decoding_guide is given without a type"),
    "a guide of json": ("json", "{}", "takes no guide"),
}


@IN_PROCESS
@pytest.mark.parametrize("name", REFUSED)
def test_an_impossible_guide_is_answered_with_status_400_and_one_line(server: Deploy, name: str) -> None:
    guide_type, guide, text = REFUSED[name]
    body = {
        "text_input": PROMPT,
        "guided_decoding_guide_type": guide_type,
        "guided_decoding_guide": guide,
    }
    failures = server.metric("request_errors", kind="engine_failure")
    status, answer = server.post(body)
    assert status == 400
    assert text in answer["error"]
    assert "\n" not in answer["error"]
    assert server.metric("request_errors", kind="engine_failure") == failures


# Sixty characters, of which the first mask takes microseconds and the second one seconds.
HOSTILE = "x" + 5 * "(" + "[^a]{0,49}" + 5 * "){0,49}"


@IN_PROCESS
def test_a_hostile_guide_is_refused_to_all_and_streams_beside_it_go_on(server: Deploy) -> None:
    """That they do not wait for it is proven where it is followed, in `test_follower.py`."""
    schema = {"type": "string", "pattern": f"^{HOSTILE}$"}
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "hostile", "schema": schema}}
    messages: Any = [{"role": "user", "content": "a"}]
    free: Any = {"prompt": "class A:\n", "max_tokens": 400, "temperature": 0}
    with openai.OpenAI(base_url=server.api, api_key="none", max_retries=0) as client:

        def ask() -> str:
            with pytest.raises(openai.BadRequestError) as caught:
                client.chat.completions.create(model=server.model, messages=messages, response_format=wanted)
            assert caught.value.param == "response_format"
            return caught.value.message

        def text() -> str:
            stream = client.completions.create(model=server.model, stream=True, **free)
            return "".join(chunk.choices[0].text for chunk in stream if chunk.choices)

        with ThreadPoolExecutor(2) as pool:
            beside, refused = pool.submit(text), pool.submit(ask)
        assert "so ambiguous" in refused.result()
        assert ask() == refused.result()
        assert beside.result() == text()


@ONLY_BLS
def test_engines_that_are_models_of_their_own_decode_alone_and_the_answer_says_so(server: Deploy) -> None:
    """NVIDIA's tensors do not tell where a guide began, so a guided text is one request."""
    body = {"text_input": PROMPT, "max_tokens": 200, **GUIDED["regex"]}
    for sampling in ({}, {"temperature": 0.9, "seed": 3}):
        status, answer = server.post({**body, **sampling})
        assert status == 200, answer
        assert re.fullmatch(REGEX, answer["text_output"])
        assert answer["speculation"] == "off: guided_decoding_guide_type"
    for change, problem in (
        ({"guided_decoding_guide": "("}, "parenthesis is not closed"),
        ({"min_tokens": 3}, "min_tokens is given together with a guide"),
        ({"guided_decoding_guide_type": "structural_tag"}, "guided_decoding_guide_type is structural_tag"),
    ):
        status, answer = server.post({**body, **change})
        assert status == 400
        assert problem in answer["error"]
