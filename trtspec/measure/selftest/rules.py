"""The rules that engines must keep, in ordinary decoding, with many requests at once, in verifications."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator, Mapping

from trtspec.measure.selftest.trial import (
    SAMPLES,
    WISHES,
    WORK,
    Differs,
    NotTried,
    Question,
    Rule,
    Trial,
    check,
    expect,
    final,
)
from trtspec.serving.executor import FinishReason, Guide, GuideType, Request, Response, SamplingConfig

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


@check("cancellation", "executor/executorImpl.cpp, terminateCancelledRequests", WORK, of_drafts=False)
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


@check("block reuse", "rule 1: batch_manager/kvCacheManager.cpp", WORK, of_drafts=False)
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


@check("bans and bias", "layers/externalDraftTokensLayer.cpp, PenaltyLayer and BanWordsLayer", WISHES)
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


@check("guides", "batch_manager/guidedDecoder.cpp", WISHES, of_drafts=False)
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


_CHOICES, _DRAWS = 4, 800
_LENGTHS, _CUT_DRAWS, _RARE = 6, 200, 0.03
"""The lengths of prompts before drafts that are cut, the draws of each, and the smallest probability of a
choice, so that it is drawn some times."""
_Z = 3.7
"""The normal quantile beyond which a distribution counts as different; one of ten thousand equal ones exceeds
it."""


@check("accepted and one more", "rule 3: batch_manager/trtGptModelInflightBatching.cpp, updateRequests")
async def accepted_and_one_more(trial: Trial) -> str:
    """A verification returns the n accepted draft tokens and one of the target's own."""
    for question in trial.questions:
        text = list(question.text)
        for accepted in range(trial.k + 1):
            draft = text[: trial.k]
            if accepted < trial.k:
                draft[accepted] = trial.wrong(draft[accepted])
            said = await trial.tokens(Request(question.prompt, trial.k + 1, draft))
            expect(said, text[: accepted + 1], f"{accepted} of {trial.k} draft tokens are right")
    return f"0 to {trial.k} accepted after {len(trial.questions)} prompts"


@check(
    "nothing after a mismatch",
    "rule 3: kernels/speculativeDecoding/externalDraftTokensKernels.cu, acceptDraftTokensKernel",
)
async def nothing_behind_a_mismatch(trial: Trial) -> str:
    """No token of a draft counts after the first one that the target would not choose.

    The target continues its own text, and not the draft's.
    """
    for question in trial.questions:
        text = list(question.text)
        begun = [text[0], trial.wrong(text[1])]
        follow = await trial.tokens(Request([*question.prompt, *begun], trial.k - 2))
        said = await trial.tokens(Request(question.prompt, trial.k + 1, begun + follow))
        expect(said, text[:2], "a draft that continues its wrong token as the target would")
    return f"behind {len(trial.questions)} prompts"


@check("one step", "rule 2: batch_manager/trtGptModelInflightBatching.cpp, updateRequests")
async def final_after_one_step(trial: Trial) -> str:
    """A request with a draft is final after one verification, whatever max_tokens says."""
    question = trial.questions[0]
    whole, draft = list(question.text[: trial.k + 1]), question.text[: trial.k]
    for max_tokens in (trial.k + 1, trial.k + 2, 50):
        for streams in (False, True):
            [answer] = await trial.hear(Request(question.prompt, max_tokens, draft, streaming=streams))
            expect(answer.token_ids, whole, f"with max_tokens {max_tokens}")
    return "with max_tokens beyond K + 1, streaming or not"


@check("max_tokens", "rule 7: batch_manager/llmRequest.cpp")
async def max_tokens_cuts(trial: Trial) -> str:
    """A max_tokens below K + 1 cuts the answer off."""
    question = trial.questions[0]
    for max_tokens in range(1, trial.k + 1):
        said = await trial.tokens(Request(question.prompt, max_tokens, question.text[: trial.k]))
        expect(said, list(question.text[:max_tokens]), f"with max_tokens {max_tokens} and K {trial.k}")
    return f"1 to {trial.k}"


@check(
    "end token", "rule 4: kernels/speculativeDecoding/externalDraftTokensKernels.cu, acceptDraftTokensKernel"
)
async def end_token_is_left_out(trial: Trial) -> str:
    """The end token of a verification is not in the answer, proposed or not.

    The draft contains the end token, or is wrong at that position, or ends before it.
    """
    tried = 0
    for question, position in _new_tokens(trial):
        text, end_id = list(question.text), question.text[position]
        for is_proposed in (True, False):
            draft = text[: trial.k]
            if not is_proposed and position < trial.k:
                draft[position] = trial.wrong(draft[position])
            where = f"the end token is number {position}, {'' if is_proposed else 'not '}proposed"
            [answer] = await trial.ask(Request(question.prompt, trial.k + 1, draft, end_id))
            expect(answer.token_ids, text[:position], where)
            if answer.finish_reason is not FinishReason.END_ID:
                # Not every engine reports the end; then the next round finds it.
                [answer] = await trial.ask(Request([*question.prompt, *text[:position]], 1, end_id=end_id))
                expect((answer.token_ids, answer.finish_reason), ([], FinishReason.END_ID), f"{where}, next")
            tried += 1
    return f"at {tried} places"


@check(
    "where a text ends",
    "rule 5: kernels/speculativeDecoding/externalDraftTokensKernels.cu, acceptDraftTokensKernel",
)
async def only_the_end_is_a_beginning(trial: Trial) -> str:
    """An answer has ended exactly if it is a prefix of the verified draft.

    Any other answer has a token of the target's own.
    """
    for question, position in _new_tokens(trial):
        text = list(question.text[: trial.k])
        foreign = next(token for token in range(trial.executor.limits.vocab_size) if token not in text)
        for end_id in (None, foreign, text[position] if position < trial.k else None):
            draft = [*text[:position], foreign, *text[position + 1 :]] if position < trial.k else text
            [answer] = await trial.ask(Request(question.prompt, trial.k + 1, draft, end_id))
            new = answer.token_ids
            verified = draft[: trial.k if answer.num_verified is None else answer.num_verified]
            is_end = len(new) <= len(verified) and new == verified[: len(new)]
            met = position < trial.k and end_id == question.text[position]
            expect(is_end, met, f"answer {new} to the draft {draft} with end token {end_id} is an end")
    return "also if the draft proposes an end that the target does not"


@check("tokens verified", "rule 6: executor/types.h, SpeculativeDecodingMetrics", WORK)
async def verified_is_told(trial: Trial) -> str:
    """The answer reports how many draft tokens the engine verified."""
    question = trial.questions[0]
    [silent] = await trial.ask(Request(question.prompt, 2))
    expect(silent.num_verified, None, "tokens verified without a draft")
    for length in range(1, trial.k + 1):
        [answer] = await trial.ask(Request(question.prompt, length + 1, question.text[:length]))
        expect(answer.num_verified, length, f"tokens verified of a draft of {length}")
    return f"1 to {trial.k}"


@check("rounds", "rule 1: batch_manager/kvCacheManager.cpp; TensorRT-LLM #2217")
async def rounds_give_the_plain_text(trial: Trial) -> str:
    """Rounds of verifications give the answer of plain decoding.

    Every third draft has a wrong token.
    """
    rounds = 0
    for question in trial.questions:
        text = list(question.text)
        for length in (1, trial.k):
            said: list[int] = []
            while len(said) + length < len(text):
                draft = text[len(said) : len(said) + length]
                if rounds % 3 == 2:
                    draft[-1] = trial.wrong(draft[-1])
                [answer] = await trial.ask(Request([*question.prompt, *said], length + 1, draft))
                said, rounds = said + answer.token_ids, rounds + 1
                if not answer.token_ids:
                    raise Differs(f"round {rounds} gives no token, though nothing ends the text")
            expect(said, text[: len(said)], f"text in rounds of {length}")
    return f"{rounds} rounds"


@check("trimmed drafts", "batch_manager/microBatchScheduler.cpp, fitDraftTokens")
async def trimmed_drafts(trial: Trial) -> str:
    """A draft that does not fit an iteration is cut, and the rest is verified.

    The check sends as many drafts at once as the engine takes, after prompts whose every token counts.
    """
    k = trial.k
    asked = [trial.questions[i % len(trial.questions)] for i in range(trial.executor.limits.max_batch_size)]
    requests = [Request(one.prompt, k + 1, one.text[:k]) for one in asked]
    kept = []
    for question, request, answer in zip(asked, requests, await trial.ask(*requests), strict=True):
        kept.append(k if answer.num_verified is None else answer.num_verified)
        expect(answer.token_ids, trial.right(question, request, answer), f"{kept[-1]} of {k} tokens are left")
    cut = [length for length in kept if length < k]
    if not cut:
        raise NotTried(f"the engine has cut none of {len(kept)} drafts at once")
    return f"{len(cut)} of {len(kept)} drafts were cut, the shortest to {min(cut)}"


def _new_tokens(trial: Trial) -> Iterator[tuple[Question, int]]:
    """Yields positions in texts, up to K, whose token did not occur before."""
    for question in trial.questions:
        text = question.text[: trial.k + 1]
        yield from ((question, at) for at in range(trial.k + 1) if text[at] not in text[:at])


@check("sampled drafts", "rules 9 and 10: layers/externalDraftTokensLayer.cpp, acceptDraftTokens", SAMPLES)
async def sampled_drafts(trial: Trial) -> str:
    """With one-hot draft logits the first token has the target's distribution, whatever the draft is.

    Draws the first token with the likeliest as the draft, or the second, many times.
    """
    limits = trial.executor.limits
    if not limits.drafts_samples:
        raise NotTried("the engine verifies drafts only for greedy requests")
    begun = [question.prompt[:length] for question in trial.questions for length in (2, 3)]
    known = [(prompt, await trial.likely(prompt, _CHOICES)) for prompt in begun]
    # If no choice is rare, every choice counts.
    prompt, wanted = max(known, key=lambda one: min(one[1].values()))
    worst = 0.0
    for number, drafted in enumerate(list(wanted)[:2]):
        first = 1 + number * _DRAWS
        sampling = [
            SamplingConfig(temperature=1.0, top_k=_CHOICES, seed=7919 * seed)
            for seed in range(first, first + _DRAWS)
        ]
        answers = await trial.ask(*(Request(prompt, 2, [drafted], sampling=each) for each in sampling))
        counts = Counter(answer.token_ids[0] for answer in answers)
        z = _deviation(counts, wanted, _DRAWS)
        if z > _Z or set(counts) - set(wanted):
            raise Differs(f"sampled with draft token {drafted}: {_shares(counts, wanted, _DRAWS)}")
        worst = max(worst, z)
    return f"2 x {_DRAWS} draws, {worst:.1f} standard deviations off at most"


@check(
    "sampled drafts that are cut", "rule 9: batch_manager/microBatchScheduler.cpp, fitDraftTokens", SAMPLES
)
async def sampled_drafts_cut(trial: Trial) -> str:
    """A sampled draft that is cut leaves the distribution of the first token as it is.

    Sends drafts of K tokens after prompts of neighbouring lengths: the engine cuts what does not fit a block
    of the KV cache, and what does not fit an iteration.
    """
    if not trial.executor.limits.drafts_samples:
        raise NotTried("the engine verifies drafts only for greedy requests")
    begun = [(question, cut) for question in trial.questions for cut in range(_LENGTHS)]
    verified, worst = list[int](), 0.0
    for question, cut in begun:
        prompt = question.prompt[: len(question.prompt) - cut]
        wanted = await trial.likely(prompt, _CHOICES) if prompt else {}
        if len(verified) >= _CUT_DRAWS * _LENGTHS or min(wanted.values(), default=0.0) < _RARE:
            continue
        draft = [next(iter(wanted)), *question.text[: trial.k - 1]]
        sampling = [
            SamplingConfig(temperature=1.0, top_k=_CHOICES, seed=104_729 * seed)
            for seed in range(1, 1 + _CUT_DRAWS)
        ]
        answers = await trial.ask(*(Request(prompt, trial.k + 1, draft, sampling=one) for one in sampling))
        verified += (trial.k if one.num_verified is None else one.num_verified for one in answers)
        counts = Counter(answer.token_ids[0] for answer in answers)
        z = _deviation(counts, wanted, _CUT_DRAWS)
        if z > _Z or set(counts) - set(wanted):
            found = _shares(counts, wanted, _CUT_DRAWS)
            raise Differs(f"with drafts of {trial.k} tokens, cut to {min(verified)} at least: {found}")
        worst = max(worst, z)
    if min(verified, default=trial.k) == trial.k:
        raise NotTried(f"the engine has cut none of {len(verified)} sampled drafts")
    cut_ = sum(length < trial.k for length in verified)
    return f"{cut_} of {len(verified)} drafts were cut, {worst:.1f} standard deviations off at most"


def _shares(counts: Counter[int], wanted: Mapping[int, float], draws: int) -> str:
    expected = {token: f"{share:.3f}" for token, share in wanted.items()}
    return f"expected {expected}, found { {token: f'{counts[token] / draws:.3f}' for token in counts} }"


@check("greedy beside sampled", "rule 11: batch_manager/createNewDecoderRequests.cpp")
async def greedy_beside_sampled(trial: Trial) -> str:
    """Draft logits belong to one slot, and change no request beside it.

    So sampled requests change no greedy one.
    """
    if not trial.executor.limits.drafts_samples:
        raise NotTried("the engine verifies drafts only for greedy requests")
    question, k = trial.questions[0], trial.k
    warm = SamplingConfig(temperature=1.5, seed=3)
    draft = question.text[:k]
    count = trial.executor.limits.max_batch_size
    requests = [
        Request(question.prompt, k + 1, draft, sampling=warm if i % 2 else SamplingConfig())
        for i in range(count)
    ]
    for request, answer in list(zip(requests, await trial.ask(*requests), strict=True))[::2]:
        right = trial.right(question, request, answer)
        expect(answer.token_ids, right, "a greedy answer beside sampled ones")
    return f"{count} at once"


def _deviation(counts: Counter[int], wanted: Mapping[int, float], draws: int) -> float:
    """Returns Pearson's chi-square as a normal deviate (Wilson and Hilferty 1931)."""
    degrees = len(wanted) - 1
    square = sum((counts[token] - draws * p) ** 2 / (draws * p) for token, p in wanted.items())
    spread = 2 / (9 * degrees)
    return float(((square / degrees) ** (1 / 3) - (1 - spread)) / spread**0.5)


RULES = tuple(rule for rule in vars().values() if isinstance(rule, Rule))
"""The rules of this module, in its order."""
