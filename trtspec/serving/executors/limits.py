"""The limits that an engine was built with, read from its directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executor import MAX_TOP_LOG_PROBS, Limits

DRAFT_TOKENS_EXTERNAL = 2  # `SpeculativeDecodingMode`, written as an integer
TORCH_VERSION = "trtspec-torch"
"""How the version of an engine of the torch backend begins; others have TensorRT-LLM's."""


def read_limits(engine_dir: Path) -> Limits:
    """Returns the limits in an engine directory's `config.json`; raises `EngineLoadError`."""
    path = engine_dir / "config.json"
    try:
        return limits_of(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise EngineLoadError(path, "no such file; is this an engine directory?") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EngineLoadError(path, f"not an engine's config.json ({error!r})") from error


def limits_of(document: Mapping[str, Any]) -> Limits:
    """Returns the limits in the content of a `config.json`, which every builder writes with NVIDIA's keys.

    Raises KeyError for a missing key, ValueError or TypeError for a wrong value.
    """
    model, build = document["pretrained_config"], document["build_config"]
    external = int(build["speculative_decoding_mode"]) == DRAFT_TOKENS_EXTERNAL
    is_torch = str(document["version"]).startswith(TORCH_VERSION)
    return Limits(
        max_batch_size=int(build["max_batch_size"]),
        # A plan turns chunked context on wherever an iteration may be too short for a prompt, so that any
        # prompt fits that leaves room for one token.
        max_input_len=int(build["max_seq_len"]) - 1,
        max_seq_len=int(build["max_seq_len"]),
        max_draft_len=int(build["max_draft_len"]) if external else 0,
        vocab_size=int(model["vocab_size"]),
        # TensorRT-LLM cannot say them. An engine that verifies drafts returns 0 for every token, with and
        # without a draft: layers/externalDraftTokensLayer.cpp gives its kernels no place to write them to.
        # The others say them of the distribution after temperature, penalties and top-k
        # (kernels/samplingTopKKernels.cu), where a greedy token always has 0.
        returns_log_probs=is_torch,
        max_top_log_probs=MAX_TOP_LOG_PROBS if is_torch else 0,
        # `ban_bad_words` of kernels/banBadWords.cu asks for `0 < banned_token`.
        never_banned=frozenset() if is_torch else frozenset({0}),
    )
