"""Drafts of lookahead decoding: n-grams that the target itself guesses and verifies in the same steps."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trtspec.methods.method import Method

_BY_ITSELF = "an engine with lookahead drafts by itself, the same number of tokens in every step"
_LACKING = {
    "speculation.mode": "an engine with lookahead verifies its own n-grams: its mode is lookahead_decoding",
    "speculation.policy": _BY_ITSELF,
    "speculation.num_draft_tokens": f"{_BY_ITSELF}; window_size, ngram_size and verification_set_size say it",
    "speculation.share": _BY_ITSELF,
}


class LookaheadMethod(Method):
    """The target guesses n-grams beside its text and verifies them (Fu et al. 2024, arXiv 2402.02057).

    Names and defaults are those of NVIDIA's `LookaheadDecodingConfig` (`executor.h`). The least that it calls
    meaningful is 2, 2 and 1; below it decodes plainly (`examples/lookahead/README.md`).
    """

    of_servers = True
    lacking_inside = _LACKING
    kind: Literal["lookahead"] = Field(description="The name of this method.")
    window_size: Annotated[int, Field(ge=2, le=1024)] = Field(
        default=4, description="The number of positions ahead of the text that are guessed at once."
    )
    ngram_size: Annotated[int, Field(ge=2, le=1024)] = Field(
        default=3, description="The length of the guessed n-grams; a step yields at most that many tokens."
    )
    verification_set_size: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=4, description="The number of n-grams that are verified at once."
    )
