"""The intake of a request, which checks and tokenizes it and fits it to the engines."""

from __future__ import annotations

import math
from dataclasses import replace

from trtspec.serving.completion import NO_END, CompletionRequest
from trtspec.serving.errors import RequestError
from trtspec.serving.executor import GuideType, Limits, SamplingConfig
from trtspec.serving.state import NUM_SEEDS, CompletionState, StopMatcher, unsplittable_options, with_seed
from trtspec.serving.text import Text
from trtspec.serving.tokenizer import Tokenizer

MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH = 1024
MAX_STOP_CHARACTERS = 4096
MAX_STOP_TOKENS = 64
MAX_BIAS_WORDS = 300
MAX_BIASED_TOKENS = 1024
MAX_TENANT_LENGTH = 256
MAX_BIAS = 1e6
MAX_PENALTY = 1e6
LONG = 4096
"""The size of a request, in characters or tokens, from which `begin` takes milliseconds."""


def is_long(request: CompletionRequest) -> bool:
    """Says whether `begin` takes so long for a request that it would delay other rounds."""
    biased = (word for word, _ in request.embedding_bias if isinstance(word, str))
    token_ids, words = request.prompt_token_ids or (), (*request.stop, *request.bad_words, *biased)
    return len(request.prompt or "") + 8 * sum(map(len, words)) + len(token_ids) > LONG


def begin(request: CompletionRequest, limits: Limits, tokenizer: Tokenizer) -> CompletionState:
    """Returns the state before the first round, for a target with these `limits`; raises `RequestError`.

    It reduces `max_tokens` to what fits the engine, as TensorRT-LLM does.
    """
    num_draft_tokens = limits.max_draft_len if request.num_draft_tokens is None else request.num_draft_tokens
    if request.max_tokens < 1:
        raise RequestError("max_tokens", request.max_tokens, "at least 1")
    if not 0 <= num_draft_tokens <= limits.max_draft_len:
        allowed = f"0 to {limits.max_draft_len}, the target engine's max_draft_len"
        raise RequestError("num_draft_tokens", num_draft_tokens, allowed)
    _check_strings("stop", request.stop)
    _check_strings("bad_words", request.bad_words)
    if request.timeout_s is not None and not request.timeout_s > 0:
        raise RequestError("timeout", f"{request.timeout_s} s", "a time above 0")
    if len(request.tenant) > MAX_TENANT_LENGTH:
        found = f"a name of {len(request.tenant)} characters"
        raise RequestError("tenant", found, f"at most {MAX_TENANT_LENGTH} characters")
    _check_sampling(request.sampling, limits)
    if request.return_log_probs and not limits.returns_log_probs:
        allowed = "false or left out, since the target engine does not report its model's own probabilities"
        raise RequestError("return_log_probs", "true", allowed)
    _check_top_log_probs(request, limits)
    _check_guide(request, limits)
    embedding_bias = _embedding_bias(request.embedding_bias, limits, tokenizer)
    own_end_ids = _end_ids(request.end_id, limits, tokenizer)
    end_ids = (*own_end_ids, *_stop_token_ids(request.stop_token_ids, limits))
    prompt = _prompt(request, limits, tokenizer)

    sampling = with_seed(request.sampling)
    unsplittable = unsplittable_options(sampling, request.guide, limits.resumes_guides)
    undrafted_for = unsplittable or (() if sampling.is_greedy or limits.drafts_samples else ("sampling",))
    if not unsplittable:
        sampling = replace(sampling, min_tokens=None)  # See `CompletionState.endless_request`.
    return CompletionState(
        text=prompt,
        num_input_tokens=len(prompt),
        max_tokens=min(request.max_tokens, _max_total_len(limits) - len(prompt)),
        min_tokens=request.sampling.min_tokens or 0,
        max_draft_len=0 if undrafted_for else num_draft_tokens,
        sampling=sampling,
        end_ids=end_ids,
        stop=StopMatcher(request.stop, is_included=request.include_stop),
        detokenizer=tokenizer.detokenizer(skip_special_tokens=request.skip_special_tokens),
        undrafted_for=undrafted_for if num_draft_tokens else (),
        embedding_bias=embedding_bias,
        bad_words=[_bad_word(word, limits, tokenizer) for word in request.bad_words],
        return_log_probs=request.return_log_probs,
        top_log_probs=request.top_log_probs,
        guide=request.guide and replace(request.guide, end_ids=own_end_ids),
    )


def _max_total_len(limits: Limits) -> int:
    """Returns the longest prompt and completion: an engine reserves room for a draft in every request."""
    return limits.max_seq_len - limits.max_draft_len


def _check_top_log_probs(request: CompletionRequest, limits: Limits) -> None:
    number, most = request.top_log_probs, limits.max_top_log_probs
    if number and not request.return_log_probs:
        raise RequestError("top_log_probs", number, "0 or left out without return_log_probs")
    if not 0 <= number <= most:
        allowed = f"0 to {most}" if most else "0 or left out, since the target engine reports no others"
        raise RequestError("top_log_probs", number, allowed)


def _check_strings(field: str, strings: tuple[str, ...]) -> None:
    if len(strings) > MAX_STOP_STRINGS:
        raise RequestError(field, f"{len(strings)} strings", f"at most {MAX_STOP_STRINGS}")
    for string in strings:
        _check_length(field, string)
    if (total := sum(map(len, strings))) > MAX_STOP_CHARACTERS:
        raise RequestError(field, f"{total} characters in all", f"at most {MAX_STOP_CHARACTERS} in all")


def _check_length(field: str, string: str) -> None:
    if not 1 <= len(string) <= MAX_STOP_LENGTH:
        found = f"a string of {len(string)} characters"
        raise RequestError(field, found, f"strings of 1 to {MAX_STOP_LENGTH} characters")


def _check_sampling(sampling: SamplingConfig, limits: Limits) -> None:
    def check(field: str, value: float | None, low: float, high: float, allowed: str) -> None:
        if value is not None and not (math.isfinite(value) and low <= value <= high):
            raise RequestError(field, value, allowed)

    above_zero, anything = math.ulp(0.0), math.inf
    check("temperature", sampling.temperature, 0, anything, "a finite number, at least 0")
    check("top_k", sampling.top_k, 0, anything, "at least 0")
    check("top_p", sampling.top_p, above_zero, 1, "above 0 and at most 1")
    check("min_p", sampling.min_p, 0, 1, "0 to 1")
    check("seed", sampling.seed, 0, NUM_SEEDS - 1, "0 to 2^64 - 1")
    most = MAX_PENALTY
    check("repetition_penalty", sampling.repetition_penalty, 1 / most, most, f"{1 / most:f} to {most:.0f}")
    check("presence_penalty", sampling.presence_penalty, -most, most, f"{-most:.0f} to {most:.0f}")
    check("frequency_penalty", sampling.frequency_penalty, -most, most, f"{-most:.0f} to {most:.0f}")
    check("min_tokens", sampling.min_tokens, 0, anything, "at least 0")
    for field in sorted(limits.ignored_options & {*sampling.in_effect}):
        nothing = 1 if field == "repetition_penalty" else 0
        allowed = f"{nothing} or left out, since the target engine would ignore it"
        raise RequestError(field, getattr(sampling, field), allowed)


def _check_guide(request: CompletionRequest, limits: Limits) -> None:
    """Raises `RequestError` for a guide that the engine cannot follow, or cannot combine with other options.

    An engine that does not resume guides is TensorRT-LLM's; `check_guided` of its executor has the reasons.
    """
    guide = request.guide
    if guide is None:
        return
    if guide.guide_type not in limits.guide_types:
        types = [guide_type.value for guide_type in GuideType if guide_type in limits.guide_types]
        nothing = "left out, since the target engine follows no guide"
        allowed = f"one of {', '.join(types)}" if types else nothing
        raise RequestError("guide_type", guide.guide_type.value, allowed)
    if limits.resumes_guides:
        return
    beside = {
        "end_id": request.end_id,
        "bad_words": request.bad_words or None,
        "min_tokens": request.sampling.min_tokens or None,
    }
    for field, value in beside.items():
        if value is not None:
            allowed = "left out, as the target engine needs it"
            raise RequestError(field, "given together with a guide", allowed)


def _embedding_bias(
    bias: tuple[tuple[str | int, float], ...], limits: Limits, tokenizer: Tokenizer
) -> dict[int, float]:
    """Returns the number that is added to the logit of each token id."""
    field = "embedding_bias_words" if bias and isinstance(bias[0][0], str) else "embedding_bias_ids"
    if bias and not limits.takes_bias:
        raise RequestError(field, bias[0][0], "nothing, since the target engine would ignore it")
    if len(bias) > MAX_BIAS_WORDS:
        raise RequestError(field, f"{len(bias)} in all", f"at most {MAX_BIAS_WORDS}")
    total: dict[int, float] = {}
    for word, weight in bias:
        if not abs(weight) <= MAX_BIAS:
            raise RequestError("embedding_bias_weights", weight, f"{-MAX_BIAS:.0f} to {MAX_BIAS:.0f}")
        for token_id in _biased_tokens(word, limits, tokenizer):
            total[token_id] = total.get(token_id, 0.0) + weight
        if len(total) > MAX_BIASED_TOKENS:  # Each one costs time in every step of the batch.
            found, most = f"words of {len(total)} token ids or more", f"at most {MAX_BIASED_TOKENS} in all"
            raise RequestError("embedding_bias_words", found, most)
    return total


def _biased_tokens(biased: str | int, limits: Limits, tokenizer: Tokenizer) -> list[int]:
    if isinstance(biased, str):
        _check_length("embedding_bias_words", biased)
        return _word_tokens("embedding_bias_words", biased, limits, tokenizer)
    if not 0 <= biased < limits.vocab_size:
        raise RequestError("embedding_bias_ids", biased, f"token ids from 0 to {limits.vocab_size - 1}")
    return [biased]


def _bad_word(word: str, limits: Limits, tokenizer: Tokenizer) -> list[int]:
    tokens = _word_tokens("bad_words", word, limits, tokenizer)
    if tokens[-1] in limits.never_banned:
        allowed = f"words that do not end in token id {tokens[-1]}, which the target engine never bans"
        raise RequestError("bad_words", repr(word), allowed)
    return tokens


def _word_tokens(field: str, word: str, limits: Limits, tokenizer: Tokenizer) -> list[int]:
    """Returns the tokens of a word by itself, without special tokens, as in NVIDIA's preprocessing."""
    try:
        tokens = tokenizer.encode(word, add_special_tokens=False)
    except UnicodeEncodeError:
        raise RequestError(field, "not valid Unicode", "text that UTF-8 can hold") from None
    if not tokens:
        raise RequestError(field, repr(word), "strings of which the tokenizer makes tokens")
    _check_embedded(field, Text(tokens), limits, tokenizer)
    return tokens


def _check_embedded(field: str, text: Text, limits: Limits, tokenizer: Tokenizer) -> None:
    """Raises `RequestError` for a token of a tokenizer that is past the engine's embedding."""
    if text.largest >= limits.vocab_size:
        found = f"text with the token {tokenizer.name_of(text.largest)!r}, whose id is {text.largest}"
        raise RequestError(field, found, f"tokens with ids from 0 to {limits.vocab_size - 1}")


def _end_ids(end_id: int | None, limits: Limits, tokenizer: Tokenizer) -> tuple[int, ...]:
    if end_id is None:
        return tokenizer.end_ids
    if end_id == NO_END:
        return ()
    if not 0 <= end_id < limits.vocab_size:
        allowed = f"a token id from 0 to {limits.vocab_size - 1}, or {NO_END} for no end"
        raise RequestError("end_id", end_id, allowed)
    return (end_id,)


def _stop_token_ids(given: tuple[int, ...], limits: Limits) -> tuple[int, ...]:
    if len(given) > MAX_STOP_TOKENS:
        raise RequestError("stop_token_ids", f"{len(given)} token ids", f"at most {MAX_STOP_TOKENS}")
    for token_id in given:
        if not 0 <= token_id < limits.vocab_size:
            raise RequestError("stop_token_ids", token_id, f"token ids from 0 to {limits.vocab_size - 1}")
    return given


def _prompt(request: CompletionRequest, limits: Limits, tokenizer: Tokenizer) -> Text:
    """Returns the prompt's token ids; raises `RequestError` where no token could follow them."""
    longest = min(limits.max_input_len, _max_total_len(limits) - 1)
    if (request.prompt is None) == (request.prompt_token_ids is None):
        found = "missing" if request.prompt is None else "given together with prompt_token_ids"
        raise RequestError("prompt", found, "given, or prompt_token_ids instead")
    allowed = f"1 to {longest} tokens"
    if request.prompt is not None:
        # A tokenizer would take seconds for megabytes that are too long anyway.
        if len(request.prompt) > longest * tokenizer.longest_token:
            raise RequestError("prompt", f"{len(request.prompt)} characters", allowed)
        try:
            ids = tokenizer.encode(request.prompt, request.add_special_tokens) if request.prompt else ()
        except UnicodeEncodeError:
            raise RequestError("prompt", "not valid Unicode", "text that UTF-8 can hold") from None
        prompt = Text(ids)
        _check_embedded("prompt", prompt, limits, tokenizer)
    else:
        prompt = Text(request.prompt_token_ids or ())
        if prompt and not (min(prompt) >= 0 and prompt.largest < limits.vocab_size):
            wrong = next(token_id for token_id in prompt if not 0 <= token_id < limits.vocab_size)
            raise RequestError("prompt_token_ids", wrong, f"token ids from 0 to {limits.vocab_size - 1}")
    field = "prompt_token_ids" if request.prompt is None else "prompt"
    if not prompt:
        raise RequestError(field, "empty", allowed)
    if len(prompt) > longest:
        raise RequestError(field, f"{len(prompt)} tokens", allowed)
    return prompt
