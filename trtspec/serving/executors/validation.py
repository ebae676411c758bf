"""The limits that an engine was built with, and the validation of a request as TensorRT-LLM does it.

The rules, and nearly the messages, are those of `LlmRequest::validate` (`batch_manager/llmRequest.cpp`) and
of `SamplingConfig` (`executor/samplingConfig.cpp`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.serving.errors import EngineLoadError, ServingError
from trtspec.serving.executor import MAX_TOP_LOG_PROBS, Limits, LogitsFormat, Request, SamplingConfig
from trtspec.serving.text import Text

# Values of `SpeculativeDecodingMode`.
DRAFT_TOKENS_EXTERNAL, MEDUSA, LOOKAHEAD, EAGLE = 2, 4, 8, 32
INSIDE = frozenset({MEDUSA, LOOKAHEAD, EAGLE})
"""The modes of engines with their own drafts."""
GREEDY_ALONE = frozenset(
    {"temperature", "top_k", "top_p", "min_p", "min_tokens"}
    | {"repetition_penalty", "presence_penalty", "frequency_penalty"}
)
"""The options that an engine with its own drafts ignores.

Its `DecodingMode` (`executor/types.h`) has neither temperature, penalties nor min_p. Medusa's layer samples
by top-k alone, with one random state for all nodes of a step (`layers/medusaDecodingLayer.cpp`). Lookahead's
layer takes the likeliest token (`layers/lookaheadDecodingLayer.cpp`), and so does an engine with EAGLE's head
itself. The end token is banned in a whole step or not at all (`kernels/penaltyKernels.cu`). No words are
banned.
"""
TORCH_VERSION = "trtspec-torch"
"""The prefix of the version of an engine of the torch backend; others have TensorRT-LLM's version."""


@contextmanager
def engine_config(engine_dir: Path) -> Iterator[dict[str, Any]]:
    """Yields the content of an engine directory's `config.json`; raises `EngineLoadError`.

    It does so too for a `KeyError`, `TypeError` or `ValueError` of the block that reads the content.
    """
    path = engine_dir / "config.json"
    try:
        yield json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise EngineLoadError(path, "no such file; is this an engine directory?") from None
    except KeyError as error:
        raise EngineLoadError(path, f"has no {error.args[0]}") from error
    except (OSError, ValueError, TypeError) as error:
        raise EngineLoadError(path, f"not an engine's config.json ({error!r})") from error


def read_limits(engine_dir: Path) -> Limits:
    """Returns the limits in an engine directory's `config.json`; raises `EngineLoadError`."""
    with engine_config(engine_dir) as document:
        return limits_of(document)


def limits_of(document: Mapping[str, Any]) -> Limits:
    """Returns the limits in the content of a `config.json`, which every builder writes with NVIDIA's keys.

    Raises `KeyError` for a missing key, `ValueError` or `TypeError` for an invalid value.
    """
    model, build = document["pretrained_config"], document["build_config"]
    mode, drafts = int(build["speculative_decoding_mode"]), int(build["max_draft_len"])
    # An engine with its own drafts reserves room for one in every sequence.
    longest = int(build["max_seq_len"]) - (drafts if mode in INSIDE else 0)
    if mode == EAGLE:  # `trtllm-build` has added them too (`build` of builder.py).
        longest -= int(model["num_eagle_layers"])
    vocab_size, is_torch = int(model["vocab_size"]), str(document["version"]).startswith(TORCH_VERSION)
    return Limits(
        max_batch_size=int(build["max_batch_size"]),
        # A plan turns chunked context on if a prompt may be longer than an iteration, so any prompt fits that
        # leaves room for one token.
        max_input_len=longest - 1,
        max_seq_len=longest,
        max_draft_len=drafts if mode == DRAFT_TOKENS_EXTERNAL else 0,
        vocab_size=vocab_size,
        ignored_options=GREEDY_ALONE if mode in INSIDE else frozenset(),
        # EAGLE's engine chooses tokens before any layer of the runtime could change their logits
        # (`layers/layersFactory.h`).
        takes_bias=mode != EAGLE,
        # TensorRT-LLM cannot return them. An engine that verifies drafts returns 0 for every token, with and
        # without a draft: layers/externalDraftTokensLayer.cpp gives its kernels no memory to write them to.
        # The others return them of the distribution after temperature, penalties and top-k
        # (kernels/samplingTopKKernels.cu), where a greedy token always has 0.
        returns_log_probs=is_torch,
        max_top_log_probs=MAX_TOP_LOG_PROBS if is_torch else 0,
        # `ban_bad_words` of kernels/banBadWords.cu requires `0 < banned_token`.
        never_banned=range(vocab_size if mode in INSIDE else 0 if is_torch else 1),
        matches_samples=is_torch,
        draft_logits=None if is_torch else _draft_logits(model),
        tokens_per_block=build.get("plugin_config", {}).get("tokens_per_block"),
    )


def _draft_logits(model: Mapping[str, Any]) -> LogitsFormat | None:
    """Returns the format of draft logits for TensorRT-LLM; None for a dtype that it cannot decode.

    `getVocabSizePadded` of `runtime/modelConfig.h` pads the vocabulary to a multiple of the ranks.
    """
    ranks = int(model["mapping"]["world_size"]) if "mapping" in model else 1
    width = -(-int(model["vocab_size"]) // ranks) * ranks
    dtype = model.get("logits_dtype", "float32")
    return LogitsFormat(width, dtype) if dtype in ("float32", "float16") else None


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
