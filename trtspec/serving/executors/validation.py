"""The validation of a request, as TensorRT-LLM does it when a request is enqueued.

The rules, and nearly the messages, are those of `LlmRequest::validate` (`batch_manager/llmRequest.cpp`) and
of `SamplingConfig` (`executor/samplingConfig.cpp`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trtspec.serving.errors import ServingError
from trtspec.serving.executor import Limits, Request, SamplingConfig
from trtspec.serving.text import Text

SMALLEST = math.ulp(0.0)


class Refused(ServingError):
    """The engine cannot serve a request; `str()` is the error in its response."""


@dataclass(frozen=True, slots=True)
class Valid:
    """A request cut to the engine's limits."""

    text: Text
    """The prompt is its first `prompt_len` tokens."""
    prompt_len: int
    draft_token_ids: list[int]
    max_tokens: int


def validate(request: Request, limits: Limits) -> Valid:
    """Returns the request cut to the engine's limits; raises `Refused` if it is invalid."""
    given, draft = request.input_token_ids, list(request.draft_token_ids)
    prompt_len = len(given)
    if not prompt_len:
        raise Refused("Input token ids are empty")
    if request.max_tokens < 1:
        raise Refused(f"Max tokens ({request.max_tokens}) must be at least 1")
    if prompt_len > limits.max_input_len:
        raise Refused(f"Prompt length ({prompt_len}) exceeds maximum input length ({limits.max_input_len})")
    if len(draft) > limits.max_draft_len:
        found, most = len(draft), limits.max_draft_len
        raise Refused(f"Draft tokens length ({found}) exceeds maximum draft tokens length ({most})")
    if not isinstance(given, Text) or given.largest >= limits.vocab_size:
        _check_tokens("Input", given, limits.vocab_size)
    _check_tokens("Draft", draft, limits.vocab_size)
    for word in request.bad_words:
        if not word:
            raise Refused("Bad word without a token")
        _check_tokens("Bad", word, limits.vocab_size)
        if word[-1] in limits.never_banned:
            raise Refused(f"Bad word {list(word)} ends in token id {word[-1]}, which this engine never bans")
    if request.end_id is not None and not -1 <= request.end_id < limits.vocab_size:
        raise Refused(f"EndId ({request.end_id}) is not within acceptable range [-1, {limits.vocab_size})")
    if request.embedding_bias and not limits.takes_bias:
        raise Refused("The engine ignores an embedding bias")
    _check_tokens("Embedding bias", list(request.embedding_bias), limits.vocab_size)
    for token_id, bias in request.embedding_bias.items():
        if not math.isfinite(bias):
            raise Refused(f"Embedding bias of token id {token_id} ({bias}) is not finite")
    _check_sampling(request.sampling, limits.ignored_options)
    if request.return_log_probs and not limits.returns_log_probs:
        raise Refused("Log-probabilities of the model's own logits are not what this engine returns")
    if request.scores_prompt and not limits.scores_prompts:
        raise Refused("The engine reports no log-probabilities of prompts")
    if not 0 <= (number := request.top_log_probs) <= limits.max_top_log_probs:
        raise Refused(f"Top log-probabilities ({number}) are not within [0, {limits.max_top_log_probs}]")
    _check_guide(request, limits)
    if draft and not request.sampling.is_greedy and not limits.drafts_samples:
        raise Refused("The engine verifies drafts of greedy requests alone")

    draft_len = len(draft) or limits.max_draft_len
    if draft:
        draft = draft[: limits.max_input_len - prompt_len]
        draft_len = len(draft)
    max_tokens = min(request.max_tokens, limits.max_seq_len - prompt_len - draft_len)
    if max_tokens < 1:
        raise Refused(
            f"Prompt length + draft tokens ({prompt_len} + {draft_len}) leave no room for output"
            f" in the maximum sequence length ({limits.max_seq_len})"
        )
    return Valid(given if isinstance(given, Text) else Text(given), prompt_len, draft, max_tokens)


def _check_guide(request: Request, limits: Limits) -> None:
    guide = request.guide
    if guide is None:
        return
    if guide.guide_type not in limits.guide_types:
        raise Refused(f"The engine follows no guides of the type {guide.guide_type.value}")
    if not 0 <= request.num_guided <= len(request.input_token_ids):
        raise Refused(f"Guided tokens ({request.num_guided}) are not all in the input")
    if not limits.resumes_guides and (request.num_guided or request.draft_token_ids):
        raise Refused("The engine follows guides from the first token on, and without drafts")


def _check_tokens(kind: str, tokens: Sequence[int], vocab_size: int) -> None:
    if tokens and not (min(tokens) >= 0 and max(tokens) < vocab_size):
        wrong = next(token for token in tokens if not 0 <= token < vocab_size)
        raise Refused(f"{kind} token id ({wrong}) is not within acceptable range [0, {vocab_size})")


def _check_sampling(sampling: SamplingConfig, ignored_options: frozenset[str]) -> None:
    def check(name: str, value: float | None, low: float = -math.inf, high: float = math.inf) -> None:
        if value is not None and not (math.isfinite(value) and low <= value <= high):
            raise Refused(f"Incorrect sampling config: {name} ({value}) is not allowed")

    check("temperature", sampling.temperature, 0)
    check("top_k", sampling.top_k, 0)
    check("top_p", sampling.top_p, SMALLEST, 1)
    check("min_p", sampling.min_p, 0, 1)
    check("repetition_penalty", sampling.repetition_penalty, SMALLEST)
    check("presence_penalty", sampling.presence_penalty)
    check("frequency_penalty", sampling.frequency_penalty)
    check("min_tokens", sampling.min_tokens, 0)
    for name in sorted(ignored_options):
        if getattr(sampling, name) and name in sampling.in_effect:
            raise Refused(f"Incorrect sampling config: the engine ignores {name}")
