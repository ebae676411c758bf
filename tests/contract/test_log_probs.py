"""Log-probabilities of the tokens, held to log_softmax of transformers' logits (rule 9 of the contract)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.contract.conftest import Answers, Ask, Continuation, Subject, Torch
from tests.fakes.trimming import Keep
from trtspec.serving.executor import FinishReason, Request, Response, SamplingConfig
from trtspec.serving.executors.torch import scoring

PROMPT = [5, 17, 33, 60]
K = 6
CLOSE = 1e-4
SAYS = pytest.mark.parametrize("subject", ["torch", "scripted", "bls"], indirect=True)
HAS_LOGITS = pytest.mark.parametrize("subject", ["torch", "bls"], indirect=True)


def expected(subject: Subject, prompt: Sequence[int], tokens: Sequence[int]) -> list[float]:
    text = [*prompt, *tokens]
    places = range(len(prompt), len(text))
    return [subject.log_prob(text[:place], text[place]) for place in places]


def check(subject: Subject, request: Request, response: Response) -> None:
    assert response.error is None
    assert response.log_probs is not None
    assert len(response.log_probs) == len(response.token_ids)
    right = expected(subject, request.input_token_ids, response.token_ids)
    assert values(response) == pytest.approx(right, abs=CLOSE)
    assert {len(said.top) for said in response.log_probs} <= {request.top_log_probs}


def values(response: Response) -> list[float]:
    return [said.value for said in response.log_probs or ()]


@SAYS
def test_plain_decoding_returns_the_log_probabilities_of_its_tokens(
    subject: Subject, answers: Answers
) -> None:
    request = Request(PROMPT, 24, return_log_probs=True)
    [response] = answers(subject.load(), request)
    assert len(response.token_ids) == 24
    check(subject, request, response)


@SAYS
@pytest.mark.parametrize("accepted", range(K + 1))
def test_a_verification_returns_log_probabilities_of_no_rejected_draft_token(
    subject: Subject, continuation: Continuation, answers: Answers, accepted: int
) -> None:
    """Of the accepted tokens and of the target's own after them, and of no draft token that was rejected."""
    draft = continuation(PROMPT, K)
    draft[accepted:] = [(token + 1) % 96 for token in draft[accepted:]]
    request = Request(PROMPT, K + 1, draft_token_ids=draft, return_log_probs=True)
    [response] = answers(subject.load(), request)
    assert len(response.token_ids) == accepted + 1
    check(subject, request, response)


@SAYS
def test_the_end_token_has_none(subject: Subject, continuation: Continuation, answers: Answers) -> None:
    """Neither in a verification nor in ordinary decoding, since it is no token of the output."""
    text = continuation(PROMPT, 30)
    position = next(i for i in range(2, K) if text[i] not in text[:i])
    plain = Request(PROMPT, 30, end_id=text[position], return_log_probs=True)
    drafted = replace(plain, max_tokens=K + 1, draft_token_ids=text[:K])
    for request, response in zip((plain, drafted), answers(subject.load(), plain, drafted), strict=True):
        assert len(response.token_ids) == position
        check(subject, request, response)
    [nothing] = answers(subject.load(), replace(plain, end_id=text[0]))
    assert (nothing.token_ids, nothing.log_probs) == ([], [])


@SAYS
def test_a_stream_carries_one_log_probability_with_each_token(subject: Subject, ask: Ask) -> None:
    request = Request(PROMPT, 12, streaming=True, return_log_probs=True)
    executor = subject.load()

    async def main() -> list[Response]:
        return await ask(executor, request)

    responses = asyncio.run(main())
    assert [len(response.log_probs or ()) for response in responses] == [1] * 12
    tokens = [token for response in responses for token in response.token_ids]
    log_probs = [value for response in responses for value in values(response)]
    assert log_probs == pytest.approx(expected(subject, PROMPT, tokens), abs=CLOSE)


@SAYS
@pytest.mark.parametrize("kept", [0, 3])
def test_a_draft_cut_short_by_the_engine_keeps_the_log_probabilities_right(
    trimmed: Callable[[Keep], Subject],
    continuation: Continuation,
    answers: Answers,
    subject: Subject,
    kept: int,
) -> None:
    request = Request(PROMPT, K + 1, draft_token_ids=continuation(PROMPT, K), return_log_probs=True)
    [response] = answers(trimmed(lambda length: kept).load(), request)
    check(subject, request, response)


WARM = SamplingConfig(temperature=1.7, top_k=12, top_p=0.95, seed=3)
PENALTIES = SamplingConfig(1.4, 20, seed=4, repetition_penalty=1.6, presence_penalty=0.7)


@HAS_LOGITS
def test_options_change_the_choice_and_not_the_number(subject: Subject, answers: Answers) -> None:
    """Temperature, filters, penalties, bias and bans: the number is that of the raw logits, in one batch."""
    mixed = [
        Request(PROMPT, 20, sampling=WARM, return_log_probs=True),
        Request(PROMPT, 20, sampling=PENALTIES, return_log_probs=True),
        Request(PROMPT, 20, return_log_probs=True, embedding_bias={5: 9.0, 60: 8.5}, bad_words=[[60, 5]]),
        Request(PROMPT, 20),
        Request(PROMPT, K + 1, draft_token_ids=[71, 3, 9], sampling=WARM, return_log_probs=True),
    ]
    executor = subject.load(max_batch_size=8)
    said = answers(executor, *mixed)
    assert [response.log_probs is not None for response in said] == [True, True, True, False, True]
    for request, response in zip(mixed, said, strict=True):
        if request.return_log_probs:
            check(subject, request, response)
    again = answers(executor, *(replace(request, return_log_probs=False) for request in mixed))
    assert [response.token_ids for response in again] == [response.token_ids for response in said]


@SAYS
def test_verification_rounds_return_the_log_probabilities_of_plain_decoding(
    subject: Subject, answers: Answers
) -> None:
    """At K = 0 and in rounds of verifications with a wrong token in every draft."""
    executor = subject.load()
    [plain] = answers(executor, Request(PROMPT, 24, return_log_probs=True))
    assert plain.log_probs is not None
    said: list[int] = []
    log_probs: list[float] = []
    while len(said) < 24:
        draft = plain.token_ids[len(said) : len(said) + 4]
        draft[-1] = (draft[-1] + 1) % 96
        [round_] = answers(executor, Request(PROMPT + said, 5, draft, return_log_probs=True))
        said, log_probs = said + round_.token_ids, log_probs + values(round_)
    assert said[:24] == plain.token_ids
    assert log_probs[:24] == pytest.approx(values(plain), abs=CLOSE)


@pytest.mark.parametrize("subject", ["tensorrt_llm"], indirect=True)
@pytest.mark.parametrize("max_draft_len", [0, K])
def test_tensorrt_llm_refuses(subject: Torch, answers: Answers, max_draft_len: int) -> None:
    """Its numbers would be something else (see `limits_of`); a request without them is served as before."""
    executor = subject.load(max_draft_len=max_draft_len)
    refused, served = answers(executor, Request(PROMPT, 4, return_log_probs=True), Request(PROMPT, 4))
    assert (refused.token_ids, refused.log_probs) == ([], None)
    assert "Log-probabilities" in (refused.error or "")
    assert (len(served.token_ids), served.log_probs) == (4, None)


@HAS_LOGITS
def test_a_prompt_read_in_several_steps_keeps_the_log_probabilities_right(
    subject: Torch, answers: Answers
) -> None:
    """Of which all but the last choose nothing."""
    prompt = [(13 * i) % 96 for i in range(100)]
    request = Request(prompt, 4, return_log_probs=True)
    [response] = answers(subject.load(max_num_tokens=32), request)
    check(subject, request, response)


def check_top(subject: Torch, request: Request, response: Response) -> None:
    """The likeliest tokens at each place are those of transformers' logits."""
    text = [*request.input_token_ids, *response.token_ids]
    right = subject.logits(text).double().log_softmax(-1)[len(request.input_token_ids) - 1 : -1]
    likeliest, token_ids = right.topk(max(request.top_log_probs, 1))
    assert response.log_probs is not None
    for said, own, ids in zip(response.log_probs, likeliest.tolist(), token_ids.tolist(), strict=True):
        assert [token_id for token_id, _ in said.top] == ids[: request.top_log_probs]
        assert [value for _, value in said.top] == pytest.approx(own[: request.top_log_probs], abs=CLOSE)


@pytest.mark.parametrize("subject", ["torch"], indirect=True)
def test_the_likeliest_others_of_each_place(
    subject: Torch, continuation: Continuation, answers: Answers
) -> None:
    """Drafted or not, accepted or not, whatever else is asked for, each request as many as it wants."""
    right = continuation(PROMPT, K)
    wrong = [*right[:3], (right[3] + 1) % 96, *right[4:]]
    asked = [
        Request(PROMPT, 12, return_log_probs=True, top_log_probs=5),
        Request(PROMPT, 12, return_log_probs=True),
        Request(PROMPT, 12, sampling=PENALTIES, return_log_probs=True, top_log_probs=20),
        Request(PROMPT, 9, bad_words=[[60]], embedding_bias={5: 9.0}, return_log_probs=True, top_log_probs=2),
        Request(PROMPT, K + 1, draft_token_ids=right, return_log_probs=True, top_log_probs=3),
        Request(PROMPT, K + 1, draft_token_ids=wrong, sampling=WARM, return_log_probs=True, top_log_probs=1),
        Request(PROMPT, K + 1, draft_token_ids=wrong),
    ]
    said = answers(subject.load(max_batch_size=8), *asked)
    assert [len(response.token_ids) for response in said[4:]][0::2] == [K + 1, 4]
    for request, response in zip(asked[:-1], said, strict=False):
        check(subject, request, response)
        check_top(subject, request, response)
    assert said[-1].log_probs is None


@pytest.mark.parametrize("subject", ["bls", "tensorrt_llm"], indirect=True)
def test_who_cannot_say_others_refuses(subject: Torch, answers: Answers) -> None:
    [refused] = answers(subject.load(), Request(PROMPT, 4, return_log_probs=True, top_log_probs=1))
    assert refused.token_ids == []
    assert "og-probabilities" in (refused.error or "")


@pytest.mark.parametrize("subject", ["torch"], indirect=True)
@pytest.mark.parametrize("length", [2, 60])
def test_a_prompt_has_the_log_probability_of_each_of_its_tokens_after_the_first(
    subject: Subject, answers: Answers, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """In chunks, beside requests that decode, and although a prefix is in the cache already."""
    monkeypatch.setattr(scoring, "ROWS", 7)
    prompt = [(5 + 7 * number) % 96 for number in range(length)]
    executor, decoding = subject.load(), Request([1, 2, 3], 40)
    [alone] = answers(executor, decoding)
    answers(executor, Request(prompt[: length // 2], 1))
    asked = Request(prompt, 1, return_log_probs=True, top_log_probs=2, scores_prompt=True)
    beside, said, again = answers(executor, decoding, asked, asked)
    assert (beside.token_ids, said.token_ids) == (alone.token_ids, [])
    right = expected(subject, prompt[:1], prompt[1:])
    assert values(said) == pytest.approx(right, abs=CLOSE)
    assert values(again) == pytest.approx(right, abs=CLOSE)
    assert {len(one.top) for one in said.log_probs or ()} == {2}
    # The request that continues the prompt computes its last token alone.
    [after] = answers(executor, Request(prompt, 1))
    assert after.num_reused == length - 1


@pytest.mark.parametrize("subject", ["torch"], indirect=True)
def test_a_cancelled_prompt_leaves_its_room(
    subject: Subject, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "ROWS", 1)
    executor, heard = subject.load(), list[Response]()
    asked = Request([7] * 60, 1, return_log_probs=True, scores_prompt=True)

    async def cancel() -> None:
        for _ in range(20):
            number = executor.enqueue_request(asked, heard.append)
            await asyncio.sleep(0)
            executor.cancel_request(number)
        while len(heard) < 20:
            await asyncio.sleep(0)

    asyncio.run(cancel())
    assert {one.finish_reason for one in heard} == {FinishReason.CANCELLED}
    [said] = answers(executor, asked)
    assert len(said.log_probs or ()) == 59


@pytest.mark.parametrize("subject", ["scripted", "bls"], indirect=True)
def test_an_engine_that_scores_no_prompts_says_so(subject: Subject) -> None:
    assert not subject.load().limits.scores_prompts
