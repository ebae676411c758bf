"""The limits that an engine was built with, from its directory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executor import MAX_TOP_LOG_PROBS, Limits, LogitsFormat

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
