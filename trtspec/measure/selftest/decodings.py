"""Checks ordinary decoding, many requests at once, and options that also hold in verifications."""

from __future__ import annotations

import asyncio
import re

from trtspec.measure.selftest.trial import Differs, NotTried, Rule, Trial, check, expect, final
from trtspec.serving.executor import FinishReason, Guide, GuideType, Request, Response

_IDLE_S = 0.2
"""The seconds after which an engine without requests must be idle."""
_SURE = 200.0
"""A bias that no logit outweighs."""


@check("plain decoding", "rule 8: batch_manager/trtGptModelInflightBatching.cpp", of_drafts=False)
async def plain_decoding(trial: Trial) -> str:
    """A request without a draft decodes on the same engine, to max_tokens."""
    for question in trial.questions:
        [answer] = await trial.ask(Request(question.prompt, len(question.text)))
        expect(answer.token_ids, list(question.text), "text without a draft")
        expect(answer.finish_reason, FinishReason.LENGTH, "finish reason at max_tokens")
    return f"{sum(len(question.text) for question in trial.questions)} tokens equal the reference's"


@check("streaming", "batch_manager/llmRequest.cpp; executor/executorImpl.cpp", of_drafts=False)
async def streaming(trial: Trial) -> str:
    """A stream contains each token once, in order."""
    question = trial.questions[0]
    heard = await trial.hear(Request(question.prompt, len(question.text), streaming=True))
    said = [token for response in heard for token in response.token_ids]
    expect(said, list(question.text), "the tokens of a stream")
    return f"{len(said)} tokens in {len(heard)} responses"


@check("end of a plain text", "rule 4: kernels/samplingTopKKernels.cu", of_drafts=False)
async def end_token(trial: Trial) -> str:
    """The end token ends an answer, and is not in it."""
    question = trial.questions[0]
    text = list(question.text)
    for token in dict.fromkeys(text):
        [answer] = await trial.ask(Request(question.prompt, len(text), end_id=token))
        found = answer.token_ids, answer.finish_reason
        expect(found, (text[: text.index(token)], FinishReason.END_ID), f"text ended by token {token}")
    return f"{len(set(text))} end tokens"


@check("end by max_tokens", "batch_manager/llmRequest.cpp", of_drafts=False)
async def end_by_max_tokens(trial: Trial) -> str:
    """An answer ends at max_tokens, though a step of an engine that drafts would return more."""
    question = trial.questions[0]
    requests = [Request(question.prompt, length) for length in range(1, len(question.text) + 1)]
    for request, answer in zip(requests, await trial.ask(*requests), strict=True):
        found = answer.token_ids, answer.finish_reason
        right = list(question.text[: request.max_tokens]), FinishReason.LENGTH
        expect(found, right, f"text with max_tokens {request.max_tokens}")
    return f"1 to {len(question.text)}"


@check("many at once", "rule 8: batch_manager/microBatchScheduler.cpp", of_drafts=False)
async def many_at_once(trial: Trial) -> str:
    """Plain requests and verifications share iterations, and each is served as if alone."""
    count = 2 * trial.executor.limits.max_batch_size
    asked = [trial.questions[i % len(trial.questions)] for i in range(count)]
    requests = []
    for index, question in enumerate(asked):
        draft = list(question.text[: index % (trial.k + 1)])
        if draft and index % 3 == 0:
            draft[-1] = trial.wrong(draft[-1])
        requests.append(Request(question.prompt, len(draft) + 1, draft))
    for question, request, answer in zip(asked, requests, await trial.ask(*requests), strict=True):
        right = trial.right(question, request, answer)
        expect(answer.token_ids, right, f"one of {len(requests)} concurrent answers")
    return f"{len(requests)} requests"


@check("cancellation", "executor/executorImpl.cpp, terminateCancelledRequests", of_drafts=False)
async def cancellation(trial: Trial) -> str:
    """A cancelled request ends before the next iteration, and the others go on.

    One of two running texts is cancelled after three tokens, and a waiting one before its first.
    """
    question, other = trial.questions[0], trial.questions[-1]
    heard: list[Response] = []
    is_over = asyncio.get_running_loop().create_future()
    executor, longest = trial.executor, trial.executor.limits.max_seq_len // 2

    def listen(response: Response) -> None:
        heard.append(response)
        if response.is_final:
            is_over.set_result(None)
        elif sum(len(one.token_ids) for one in heard) >= 3:
            executor.cancel_request(response.request_id)

    beside = asyncio.ensure_future(trial.ask(Request(other.prompt, len(other.text))))
    await asyncio.sleep(0)
    executor.enqueue_request(Request(question.prompt, longest, streaming=True), listen)
    early: list[Response] = []
    executor.cancel_request(executor.enqueue_request(Request(question.prompt, longest), early.append))
    await final(is_over)
    [answer] = await beside
    said = [token for response in heard for token in response.token_ids]
    # By then the engine may have written more than the clear beginning, and the rest is unknown.
    common = min(len(said), len(question.text))
    expect(said[:common], list(question.text[:common]), "text before the cancellation")
    expect(heard[-1].finish_reason, FinishReason.CANCELLED, "finish reason of a cancelled text")
    expect(
        [one.finish_reason for one in early], [FinishReason.CANCELLED], "a request that was cancelled early"
    )
    expect(answer.token_ids, list(other.text), "the text beside it")
    before = executor.progress
    await asyncio.sleep(_IDLE_S)
    if (steps := executor.progress - before) > 1:
        raise Differs(f"the engine went on with a cancelled text: {steps} responses in {_IDLE_S} s")
    expect(await trial.tokens(Request(question.prompt, 2)), list(question.text[:2]), "the prompt, again")
    return f"after {len(said)} tokens"


@check("block reuse", "rule 1: batch_manager/kvCacheManager.cpp", of_drafts=False)
async def block_reuse(trial: Trial) -> str:
    """A round computes only the tokens of its prompt that the KV cache lacks."""
    executor, question = trial.executor, trial.questions[0]
    executor.take_kv_use()
    if executor.kv_reuse is None:
        await trial.ask(Request(question.prompt, 1))
        executor.take_kv_use()
    before = executor.kv_reuse
    if before is None:
        raise NotTried("the engine does not report what it finds in its KV cache")
    vocabulary = executor.limits.vocab_size
    length = min(160, executor.limits.max_input_len - 4 * (trial.k + 1))
    prompt = [(7 * i * i + 13 * i + 5) % vocabulary for i in range(length)]
    for _ in range(3):
        prompt += await trial.tokens(Request(prompt, trial.k + 1, [prompt[0]] * trial.k))
    await trial.ask(Request(prompt, 1))
    executor.take_kv_use()
    after = executor.kv_reuse
    assert after is not None
    asked, found = after.asked - before.asked, after.found - before.found
    # The first of four requests finds nothing; the others find all except a block or two.
    if found < 0.4 * asked:
        raise Differs(f"of {asked} tokens in four rounds {found} were in the KV cache, expected most")
    return f"{found} of {asked} tokens in four rounds were in the KV cache"


@check("bans and bias", "layers/externalDraftTokensLayer.cpp, PenaltyLayer and BanWordsLayer")
async def bans_and_bias(trial: Trial) -> str:
    """Bad words and embedding bias also hold in verifications."""
    question = trial.questions[0]
    prompt, text = question.prompt, list(question.text)
    biased = next(token for token in range(1, trial.executor.limits.vocab_size) if token not in text)
    word, bias = [text[:2]] if text[1] else [[text[0]]], {biased: _SURE}
    for draft in ([], text[: trial.k]):
        said = await trial.tokens(Request(prompt, len(draft) + 2, draft, bad_words=word))
        expect(said[: len(word[0])] != word[0], True, f"the bad word {word[0]} is not said")
        [first, *_] = await trial.tokens(Request(prompt, len(draft) + 1, draft, embedding_bias=bias))
        expect(first, biased, "the token that the bias prefers")
    return "with a draft and without"


@check("guides", "batch_manager/guidedDecoder.cpp", of_drafts=False)
async def guides(trial: Trial) -> str:
    """A guided answer follows its grammar, and other answers of the batch do not change."""
    limits = trial.executor.limits
    if GuideType.REGEX not in limits.guide_types or trial.decode is None or not trial.end_ids:
        raise NotTried("the engine supports no guides")
    pattern, said = r"(yes|no), [0-9]{2}", ""
    guide = Guide(GuideType.REGEX, pattern, trial.end_ids)
    for question in trial.questions:
        request = Request(question.prompt, 40, end_id=trial.end_ids[0], guide=guide)
        free = Request(question.prompt, len(question.text))
        guided, beside = await trial.ask(request, free)
        said = trial.decode(guided.token_ids)
        if not re.fullmatch(pattern, said):
            raise Differs(f"the guide {pattern} gave {said!r}")
        expect(beside.token_ids, list(question.text), "an unguided text beside a guided one")
    return f"{len(trial.questions)} texts such as {said!r}"


DECODINGS = tuple(rule for rule in vars().values() if isinstance(rule, Rule))
"""The rules of this module, in its order."""
