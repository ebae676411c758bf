"""Engines with lookahead: the sizes that the runtime is told of, and how many tokens a step brings."""

from __future__ import annotations

from typing import Any

from tensorrt_llm.bindings.executor.config import ExecutorConfig
from tensorrt_llm.bindings.executor.errors import check

LOOKAHEAD = 8


def check_sizes(document: dict[str, Any], config: ExecutorConfig) -> int:
    """Returns how many drafted tokens a step accepts at most, 0 for an engine without lookahead.

    That is `gptJsonConfig.cpp`, and `setupSpeculativeDecodingModule` of trtGptModelInflightBatching.cpp. What
    the runtime would do without a word, and nobody wants, is a NotImplementedError.
    """
    decoding, build = config.decoding_config, document["build_config"]
    mode = decoding.decoding_mode if decoding is not None else None
    told = mode is not None and mode.isLookahead()
    if build["speculative_decoding_mode"] != LOOKAHEAD:
        if told:
            raise NotImplementedError("Model is not Lookahead, but decoding mode is: it is overwritten")
        return 0
    drafts = build["max_draft_len"]
    message = "max_draft_len has to be larger than 0 for Lookahead decoding model"
    check(drafts > 0, message, "runtime/gptJsonConfig.cpp")
    sizes = decoding.lookahead_decoding_config if told and decoding is not None else None
    if sizes is None:
        raise NotImplementedError("no lookahead_decoding_config: no layer has sizes to decode with")
    window, size, verified = sizes.max_window_size, sizes.max_ngram_size, sizes.max_verification_set_size
    # The numbers are those of examples/lookahead/README.md, written as there.
    wanted = (0 if size == 1 else size - 2) + (window - 1 + verified) * (size - 1)
    source = "batch_manager/trtGptModelInflightBatching.cpp"
    check(wanted <= drafts, "maxDraftTokens <= mModelConfig.getMaxDecodingDraftTokens()", source)
    if wanted != drafts:
        raise NotImplementedError("fewer tokens than the engine was built for, which NVIDIA asks for")
    return int(size) - 1
