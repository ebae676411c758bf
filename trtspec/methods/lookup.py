"""Drafts that are looked up, in the text itself and in earlier answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from trtspec.base.findings import Finding
from trtspec.methods.method import HETEROGENEOUS, HETEROGENEOUS_VOCAB, Method

LookupTokens = Annotated[int, Field(ge=1, le=64)]
_LEAST = "The smallest number of last tokens that must match."


class LookupMethod(Method):
    """A method that proposes what followed the last tokens where they stood before."""

    added = {"earlier_answers": None}  # noqa: RUF012
    prompt_lookup_min: LookupTokens = Field(default=2, description=_LEAST)
    prompt_lookup_max: LookupTokens = Field(
        default=8,
        description="The largest number of last tokens that are looked up; the longest match counts.",
    )
    earlier_answers: Annotated[int, Field(ge=1, le=10**6)] | None = Field(
        default=None,
        description="Look up this many tokens of earlier answers too, only for the tenant that got them; "
        "about 300 bytes each. None if left out.",
    )

    def contradictions(self) -> Iterator[Finding]:
        least, most = self.prompt_lookup_min, self.prompt_lookup_max
        if least > most:
            problem = f"{least} is more than prompt_lookup_max, which is {most}"
            yield Finding("prompt_lookup_min", problem, f"at most {most}")


class Ngram(LookupMethod):
    """The text itself proposes the tokens that followed its last tokens earlier in the text."""

    gives_way_to = None
    kind: Literal["ngram"] = Field(description="The name of this method.")


class NgramGpu(LookupMethod):
    """The text itself proposes, as with `ngram`; the GPU does the look-up, so no step waits for the CPU."""

    of_servers = True
    kind: Literal["ngram_gpu"] = Field(description="The name of this method.")


class Hybrid(LookupMethod):
    """The text itself proposes if its last tokens occurred before. Otherwise the draft model proposes."""

    has_model = True
    gives_way_to = "draft_model"
    added = {**LookupMethod.added, HETEROGENEOUS: False}  # noqa: RUF012
    kind: Literal["hybrid"] = Field(description="The name of this method.")
    prompt_lookup_min: LookupTokens = Field(default=4, description=_LEAST)
    use_heterogeneous_vocab: bool = Field(default=False, description=HETEROGENEOUS_VOCAB)


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
