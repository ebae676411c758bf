"""Suffix decoding with vLLM's defaults, and few answers kept."""

from __future__ import annotations

from trtspec.serving.drafters.source import Drafting

SUFFIX = Drafting(
    "suffix",
    {
        "suffix_decoding_max_tree_depth": 24,
        "suffix_decoding_max_cached_requests": 100,
        "suffix_decoding_max_spec_factor": 1.0,
        "suffix_decoding_min_token_prob": 0.1,
    },
)
