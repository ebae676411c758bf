"""Drafts of lookahead decoding: n-grams that the target itself guesses and verifies in the same steps."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trtspec.methods.method import Method, lacking_with


class LookaheadMethod(Method):
    """The target guesses n-grams beside its text and verifies them (Fu et al. 2024, arXiv 2402.02057).

    Names and defaults are those of NVIDIA's `LookaheadDecodingConfig` (`executor.h`). The least that it calls
    meaningful is 2, 2 and 1; below it decodes plainly (`examples/lookahead/README.md`).
    """

    of_servers = True
    lacking_inside = lacking_with(
        "lookahead", "lookahead_decoding", "window_size, ngram_size and verification_set_size say it"
    )
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
