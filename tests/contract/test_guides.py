"""Guides on the torch backend, held to transformers' logits under xgrammar's own masks, token by token."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from jsonschema import validate

from tests.contract.conftest import Answers, Ask, Subject, Torch
from tests.fakes.guided import END, GUIDES, OTHER_END, SCHEMA, Judge, masked, text_of
from trtspec.serving.executor import (
    GUIDE_REFUSED,
    Executor,
    FinishReason,
    Guide,
    GuideType,
    Request,
    SamplingConfig,
)
from trtspec.serving.executors.torch import follower
from trtspec.serving.executors.torch.sampler import noise
from trtspec.serving.text import Text

PROMPT = [12, 24, 48]
LENGTH = 60
# Logits of a random model prefer no token, so a number or a string would go on for ever.
SHORT = {END: 4.0, 40: 2.0, 38: 2.0, 37: 2.0, 50: 2.0}
# One letter a token, where "ab" is one too.
LETTERS = {0: 50.0, 1: 50.0, 2: 50.0}
WARM = SamplingConfig(temperature=0.9, seed=11)
CHECKS: dict[str, Callable[[str], Any]] = {
    "json": json.loads,
    "json_schema": lambda text: validate(json.loads(text), json.loads(SCHEMA)),
    "regex": lambda text: re.fullmatch(r"[a-c]{3,9}(-12){1,4}é?", text) or pytest.fail(text),
    "ebnf_grammar": lambda text: re.fullmatch(r"\[\d+(,\d+)*\]", text) or pytest.fail(text),
    "structural_tag": lambda text: text in ("true", "false") or pytest.fail(text),
}


def guided(name: str, sampling: SamplingConfig) -> Request:
    return Request(PROMPT, LENGTH, end_id=END, sampling=sampling, embedding_bias=SHORT, guide=GUIDES[name])


def expected(subject: Torch, request: Request) -> list[int]:
    """What the target says, from logits and masks that none of our code has touched but for the noise."""
    assert request.guide is not None
    matcher, said = Judge(request.guide).begin(), list[int]()
    while len(said) < request.max_tokens:
        logits = masked(matcher, subject.logits([*request.input_token_ids, *said])[-1])
        for token_id, bias in request.embedding_bias.items():
            logits[token_id] += bias
        if not request.sampling.is_greedy:
            number = (request.sampling.seed or 0) + len(said)
            logits = (
                logits / (request.sampling.temperature or 1.0) + noise([number], torch.arange(96)[None])[0]
            )
        token_id = int(logits.argmax())
        if token_id in request.guide.end_ids:
            break
        assert matcher.accept_token(token_id)
        said.append(token_id)
    return said


def in_rounds(
    executor: Executor, answers: Answers, request: Request, text: list[int], wrong: Callable[[int], int]
) -> tuple[list[int], int]:
    """What verifications say of drafts that are `text`, every third one `wrong` at its second token.

    Returns the text and how many draft tokens were accepted.
    """
    said: list[int] = []
    number = accepted = 0
    while True:
        draft = text[len(said) : len(said) + 4] or [END]
        if number % 3 == 2 and len(draft) > 1:
            draft[1] = wrong(draft[1])
        seed = None if request.sampling.seed is None else request.sampling.seed + len(said)
        ask = replace(
            request,
            input_token_ids=[*PROMPT, *said],
            max_tokens=len(draft) + 1,
            draft_token_ids=draft,
            sampling=replace(request.sampling, seed=seed),
            num_guided=len(said),
        )
        [response] = answers(executor, ask)
        assert response.error is None
        accepted += sum(one == other for one, other in zip(draft, response.token_ids, strict=False))
        said, number = said + response.token_ids, number + 1
        if response.finish_reason is FinishReason.END_ID or len(said) >= LENGTH:
            return said[:LENGTH], accepted


@pytest.mark.parametrize("sampling", [SamplingConfig(), WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", GUIDES)
def test_the_text_is_the_target_under_the_grammars_mask(
    torch_subject: Torch, answers: Answers, name: str, sampling: SamplingConfig
) -> None:
    request, executor = guided(name, sampling), torch_subject.load()
    text = expected(torch_subject, request)
    [plain] = answers(executor, request)
    assert plain.token_ids == text
    assert plain.finish_reason is FinishReason.END_ID, "a text that goes on for ever proves less"
    CHECKS[name](text_of(text))
    assert len(text) > 2 or name == "structural_tag"

    # What the grammar may allow, and what it never does.
    for wrong in (lambda token: (token + 1) % 26, lambda token: OTHER_END):
        said, accepted = in_rounds(executor, answers, request, text, wrong)
        assert said == text
        assert accepted > len(text) // 3


def test_without_the_guide_it_would_say_something_else(torch_subject: Torch, answers: Answers) -> None:
    request = guided("json", SamplingConfig())
    free, bound = answers(torch_subject.load(), replace(request, guide=None), request)
    assert free.token_ids != bound.token_ids


def test_guided_and_free_requests_share_steps(torch_subject: Torch, answers: Answers) -> None:
    requests = [guided(name, WARM) for name in GUIDES]
    free = Request(PROMPT, 20)
    alone = [answers(torch_subject.load(), request)[0].token_ids for request in (*requests, free)]
    executor = torch_subject.load(max_batch_size=8)
    together = answers(executor, *requests, free)
    assert [said.token_ids for said in together] == alone
    # The same again, with grammars that are known now, and a draft beside them.
    draft = replace(requests[0], draft_token_ids=alone[0][:3], max_tokens=4)
    again = answers(executor, *requests, free, draft)
    assert [said.token_ids for said in again] == [*alone, alone[0][:4]]


def test_a_stream_tells_each_token_once(torch_subject: Torch, ask: Ask) -> None:
    request = guided("json_schema", WARM)

    async def main() -> list[list[int]]:
        responses = await ask(torch_subject.load(), replace(request, streaming=True))
        return [response.token_ids for response in responses]

    assert asyncio.run(main()) == [[token] for token in expected(torch_subject, request)] + [[]]


@pytest.mark.parametrize(("likely", "unlikely"), [(END, OTHER_END), (OTHER_END, END)])
def test_any_of_the_end_tokens_ends_a_text_that_is_complete(
    torch_subject: Torch, answers: Answers, likely: int, unlikely: int
) -> None:
    """Where the grammar could go on, the target chooses; it may be told another end token than the likely."""
    request = Request(
        PROMPT,
        9,
        end_id=END,
        embedding_bias={0: 50.0, likely: 100.0, unlikely: -50.0},
        guide=Guide(GuideType.REGEX, "[a-c]{2,50}", (END, OTHER_END)),
    )
    for draft in ([], [0, 0, 0], [0, 0, likely], [0, 0, likely, 0]):
        [response] = answers(torch_subject.load(), replace(request, draft_token_ids=draft))
        assert (response.token_ids, response.finish_reason) == ([0, 0], FinishReason.END_ID)
    # A text of one letter is not complete, so the end token of the draft is forbidden.
    [response] = answers(torch_subject.load(), replace(request, draft_token_ids=[0, likely]))
    assert (response.token_ids, response.finish_reason) == ([0, 0], FinishReason.LENGTH)


@pytest.mark.parametrize("draft", [[], [0, 1, 2, 3]], ids=["decoded", "verified"])
@pytest.mark.parametrize("end_id", [None, -1, END])
def test_a_complete_text_ends_where_nothing_may_follow(
    torch_subject: Torch, answers: Answers, end_id: int | None, draft: list[int]
) -> None:
    """Also without an end token (`ignore_eos`), and with one that `min_tokens` holds off."""
    request = Request(
        PROMPT,
        20,
        end_id=end_id,
        draft_token_ids=draft,
        embedding_bias=LETTERS,
        sampling=SamplingConfig(min_tokens=10),
        guide=Guide(GuideType.REGEX, "abc"),
    )
    [response] = answers(torch_subject.load(), request)
    assert (text_of(response.token_ids), response.finish_reason) == ("abc", FinishReason.END_ID)


def test_min_tokens_holds_off_every_end_token(torch_subject: Torch, answers: Answers) -> None:
    request = Request(
        PROMPT,
        30,
        end_id=END,
        embedding_bias={END: 60.0, OTHER_END: 90.0},
        sampling=SamplingConfig(min_tokens=7),
        guide=Guide(GuideType.REGEX, "[a-c]{1,50}", (END, OTHER_END)),
    )
    [decoded] = answers(torch_subject.load(), request)
    assert (len(decoded.token_ids), decoded.finish_reason) == (7, FinishReason.END_ID)
    draft = replace(request, draft_token_ids=decoded.token_ids[:6], max_tokens=7)
    [verified] = answers(torch_subject.load(), draft)
    assert verified.token_ids == decoded.token_ids


@pytest.mark.parametrize("draft", [[], [0, 1]], ids=["decoded", "verified"])
@pytest.mark.parametrize(
    "sampling", [SamplingConfig(), replace(WARM, top_k=3, top_p=0.5, min_p=0.1)], ids=["greedy", "sampled"]
)
def test_bans_that_leave_no_token_are_an_error_of_that_request_alone(
    torch_subject: Torch, answers: Answers, draft: list[int], sampling: SamplingConfig
) -> None:
    guide = Guide(GuideType.REGEX, "abc", (END,))
    banned = Request(PROMPT, 9, draft, END, [[2]], sampling, embedding_bias=LETTERS, guide=guide)
    executor = torch_subject.load()
    before, refused, after = answers(executor, Request(PROMPT, 9), banned, Request(PROMPT, 9))
    assert refused.token_ids == []
    assert refused.error == f"{GUIDE_REFUSED}the guide and the other options together leave no token"
    assert before.token_ids == after.token_ids
    assert executor.failure is None


REFUSED = {
    "broken JSON": (Guide(GuideType.JSON_SCHEMA, '{"type": '), "not JSON"),
    "unknown type in a schema": (Guide(GuideType.JSON_SCHEMA, '{"type": "word"}'), 'Unsupported type "word"'),
    "a schema of nothing": (Guide(GuideType.JSON_SCHEMA, "false"), "cannot accept any value"),
    "no regular expression": (Guide(GuideType.REGEX, "(a"), "parenthesis is not closed"),
    "an empty guide": (Guide(GuideType.REGEX, ""), "is empty"),
    "a look ahead": (Guide(GuideType.REGEX, "(?=a)b"), "(?= cannot be followed at its place"),
    "no grammar": (Guide(GuideType.EBNF_GRAMMAR, "root ::= "), "Expect element"),
    "no structural tag": (Guide(GuideType.STRUCTURAL_TAG, '{"type": "tag"}'), "structural_tag"),
    "a guide of plain json": (Guide(GuideType.JSON, "{}"), "takes no guide"),
    "too long": (Guide(GuideType.REGEX, "a" * 40_000), "40000 characters"),
    "deep schema": (
        Guide(GuideType.JSON_SCHEMA, '{"items":' * 999 + "{}" + "}" * 999),
        "nested more than 64",
    ),
    "deeper schema": (Guide(GuideType.JSON_SCHEMA, '{"items":' * 3000 + "{}" + "}" * 3000), "nested"),
    "deep expression": (Guide(GuideType.REGEX, "(" * 5000 + "a" + ")" * 5000), "nested"),
    "a grammar of itself": (Guide(GuideType.EBNF_GRAMMAR, "root ::= root"), "can begin a text"),
    "a schema of itself": (Guide(GuideType.JSON_SCHEMA, '{"$ref": "#"}'), "can begin a text"),
    "a negation": (Guide(GuideType.JSON_SCHEMA, '{"not": {}}'), "not of the schema cannot be followed"),
    "a negation inside": (
        Guide(GuideType.JSON_SCHEMA, '{"anyOf": [{"items": {"not": {"type": "null"}}}]}'),
        "not of the schema",
    ),
    "a condition": (Guide(GuideType.JSON_SCHEMA, '{"if": {}, "then": false}'), "if of the schema"),
    "several at once": (
        Guide(GuideType.JSON_SCHEMA, '{"allOf": [{}, {"type": "null"}]}'),
        "allOf of several",
    ),
    "a choice beside properties": (
        Guide(GuideType.JSON_SCHEMA, '{"properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}]}'),
        "anyOf and properties of one schema cannot be followed together",
    ),
    "two choices": (
        Guide(GuideType.JSON_SCHEMA, '{"oneOf": [{}], "$ref": "#/$defs/a", "$defs": {"a": {}}}'),
        "$ref and oneOf of one schema",
    ),
    "a dependence": (Guide(GuideType.JSON_SCHEMA, '{"dependencies": {"a": ["b"]}}'), "dependencies of the"),
    "a schema elsewhere": (
        Guide(GuideType.JSON_SCHEMA, '{"$ref": "https://example.com/a.json"}'),
        "$ref 'https://example.com/a.json' is outside",
    ),
    "a schema in a file": (Guide(GuideType.JSON_SCHEMA, '{"$ref": "file:///etc/passwd"}'), "$ref 'file:"),
    "a tag's schema elsewhere": (
        Guide(
            GuideType.STRUCTURAL_TAG,
            '{"type": "structural_tag",'
            ' "format": {"type": "json_schema", "json_schema": {"$ref": "a.json"}}}',
        ),
        "$ref 'a.json'",
    ),
    "a tag's schema elsewhere, in the form of before": (
        Guide(
            GuideType.STRUCTURAL_TAG,
            '{"structures": [{"begin": "a", "schema": {"$ref": "a.json"}, "end": "b"}], "triggers": ["a"]}',
        ),
        "$ref 'a.json'",
    ),
    "deep grammar": (Guide(GuideType.EBNF_GRAMMAR, f"root ::= {'(' * 500}'a'{')' * 500}"), "nested"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_impossible_guide_is_refused_in_one_line_while_other_requests_are_served(
    torch_subject: Torch, answers: Answers, name: str
) -> None:
    guide, problem = REFUSED[name]
    executor = torch_subject.load()
    for _ in range(2):  # It is known the second time.
        before, refused, after = answers(
            executor, Request(PROMPT, 4), Request(PROMPT, 4, guide=guide), Request(PROMPT, 4)
        )
        assert (refused.token_ids, refused.is_final) == ([], True)
        assert refused.error is not None
        assert problem in refused.error
        assert "\n" not in refused.error
        assert "/project/" not in refused.error
        assert before.token_ids == after.token_ids != []


HOSTILE = {
    "nested repetitions": Guide(GuideType.REGEX, "(((a{1,1000}b){1,1000}c){1,1000}d){1,1000}", (END,)),
    "a huge repetition": Guide(GuideType.REGEX, "a{1,99999999999}", (END,)),
    "a schema that is its own": Guide(
        GuideType.JSON_SCHEMA, '{"type": "array", "items": {"$ref": "#"}}', (END,)
    ),
    "a long string": Guide(GuideType.JSON_SCHEMA, '{"type": "string", "minLength": 100000}', (END,)),
    "left recursion": Guide(GuideType.EBNF_GRAMMAR, 'root ::= root "a" | "a"', (END,)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_guides_that_can_be_read_are_followed(
    torch_subject: Torch, answers: Answers, name: str
) -> None:
    guide = HOSTILE[name]
    [response] = answers(torch_subject.load(), Request(PROMPT, 9, end_id=END, guide=guide))
    assert response.error is None
    matcher = Judge(guide).begin()
    assert response.token_ids
    assert all(map(matcher.accept_token, response.token_ids))


@pytest.mark.parametrize("draft", [[], [0, 1]], ids=["decoded", "verified"])
def test_a_grammar_that_ends_in_nothing_refuses_the_request_alone(
    torch_subject: Torch, answers: Answers, draft: list[int]
) -> None:
    dead_end = Guide(GuideType.EBNF_GRAMMAR, 'root ::= "a" dead\ndead ::= dead', (END,))
    executor = torch_subject.load()
    before, refused, after = answers(
        executor, Request(PROMPT, 9), Request(PROMPT, 9, draft, END, guide=dead_end), Request(PROMPT, 9)
    )
    assert refused.error == f"{GUIDE_REFUSED}no text of this grammar has an end"
    assert before.token_ids == after.token_ids
    assert executor.failure is None


@pytest.mark.parametrize("draft", [[], [0, 1]], ids=["decoded", "verified"])
def test_a_grammar_too_ambiguous_to_follow_ends_its_request(
    torch_subject: Torch, answers: Answers, draft: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a large vocabulary, masks of `(.|..|...){500}` take seconds; no mask takes less than nothing."""
    monkeypatch.setattr(follower, "MAX_MASK_S", -1.0)
    request = Request(PROMPT, 60, draft, guide=GUIDES["json"])
    slow, other = answers(torch_subject.load(), request, Request(PROMPT, 9))
    assert slow.error is not None
    assert "ambiguous" in slow.error
    assert len(other.token_ids) == 9


def test_a_text_that_is_not_of_the_grammar_cannot_go_on(torch_subject: Torch, answers: Answers) -> None:
    guide = Guide(GuideType.REGEX, "[a-c]+")
    [wrong] = answers(torch_subject.load(), Request([*PROMPT, 0, 9], 4, guide=guide, num_guided=2))
    assert wrong.error == "The guide forbids token 1 of what was generated before"
    [too_many] = answers(torch_subject.load(), Request(PROMPT, 4, guide=guide, num_guided=4))
    assert too_many.error is not None


def test_the_same_text_goes_on_behind_what_a_draft_had_guessed(
    torch_subject: Torch, answers: Answers
) -> None:
    """The coordinator hands over one `Text` round after round, behind which the engine keeps its place."""
    request, executor = guided("json_schema", WARM), torch_subject.load()
    said, text = expected(torch_subject, request), Text(PROMPT)
    while (done := len(text) - len(PROMPT)) < len(said):
        sampling = replace(WARM, seed=(WARM.seed or 0) + done)
        rest = said[done:]
        ask = replace(request, input_token_ids=text, num_guided=done, sampling=sampling)
        # What a draft engine proposes, which is wrong; then a verification that accepts one token.
        unlike = SHORT | {rest[0]: -99.0}
        [proposed] = answers(executor, replace(ask, max_tokens=3, embedding_bias=unlike))
        draft = [rest[0], *proposed.token_ids]
        [verified] = answers(executor, replace(ask, max_tokens=5, draft_token_ids=draft))
        assert verified.token_ids == rest[: len(verified.token_ids)]
        text.extend(verified.token_ids)


@pytest.mark.parametrize("subject", ["scripted", "tensorrt_llm", "bls"], indirect=True)
def test_an_engine_that_follows_no_guides_refuses_them(subject: Subject, answers: Answers) -> None:
    [response] = answers(subject.load(), Request(PROMPT, 4, guide=GUIDES["json"]))
    assert response.error == "The engine follows no guides of the type json"


@pytest.mark.parametrize("draft", [[], [0, 1]], ids=["decoded", "verified"])
def test_log_probabilities_are_the_models_own_beside_one_that_leaves_no_token(
    torch_subject: Torch, answers: Answers, draft: list[int]
) -> None:
    """Of the raw logits, which no mask has touched (rule 9)."""
    request = replace(guided("json_schema", SamplingConfig()), return_log_probs=True)
    banned = Request(
        PROMPT, 9, draft, END, [[2]], embedding_bias=LETTERS, guide=Guide(GuideType.REGEX, "abc"),
        return_log_probs=True,
    )  # fmt: skip
    _, said, refused, _ = answers(torch_subject.load(), banned, request, banned, banned)
    assert refused.error is not None
    logits = torch_subject.logits([*PROMPT, *said.token_ids])[len(PROMPT) - 1 : -1]
    raw = logits.log_softmax(-1)[range(len(said.token_ids)), said.token_ids]
    assert [one.value for one in said.log_probs or ()] == pytest.approx(raw.tolist(), abs=1e-4)
