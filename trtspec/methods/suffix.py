"""Drafts of suffix decoding."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trtspec.methods.method import Method


class Suffix(Method):
    """Drafts are the tokens that most often followed the last ones, in the text and in earlier answers.

    The options and their defaults are those of vLLM 0.33's `SpeculativeConfig`.
    """

    kind: Literal["suffix"] = Field(description="The name of this method.")
    suffix_decoding_max_tree_depth: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=24, description="The largest number of last tokens that are compared."
    )
    suffix_decoding_max_cached_requests: Annotated[int, Field(ge=0, le=10**6)] = Field(
        default=10000,
        description="The number of answers that are kept, each only for the tenant that got it; 0 for none.",
    )
    suffix_decoding_max_spec_factor: Annotated[float, Field(gt=0, le=64)] = Field(
        default=1.0, description="The number of drafted tokens for each last token that matched."
    )
    suffix_decoding_min_token_prob: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.1,
        description="The smallest probability of a drafted token, estimated from how often it followed.",
    )
