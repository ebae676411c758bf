"""The methods by which drafts are proposed, as a recipe names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Field

from trtspec.recipe.section import Section

LookupTokens = Annotated[int, Field(ge=1, le=64)]
KeptTokens = Annotated[int, Field(ge=1, le=10**6)]
EARLIER_ANSWERS = (
    "How many tokens of earlier answers are looked up too, each by the tenant that it was given to; "
    "some 300 bytes each. None are if left out."
)

MEDUSA_NODES = 63
"""Nodes of the tree that Medusa's authors and NVIDIA's examples use; an engine verifies one token more."""

HETEROGENEOUS = "use_heterogeneous_vocab"
TRANSLATES = f"speculation.method.{HETEROGENEOUS}"
HETEROGENEOUS_VOCAB = (
    "Whether the draft may have another vocabulary than the target: texts and drafts are then translated."
)


class DraftMethod(Section):
    """A place where drafts come from; the fields beside `kind` are the options of its drafter."""

    has_model: ClassVar[bool] = False
    is_head: ClassVar[bool] = False
    kind: str

    @property
    def options(self) -> dict[str, int | float]:
        return self.model_dump(exclude={"kind", HETEROGENEOUS}, exclude_none=True)

    @property
    def translates(self) -> bool:
        """True if the draft has a vocabulary of its own, so that its tokens are translated."""
        return bool(getattr(self, HETEROGENEOUS, False))


class DraftModelMethod(DraftMethod):
    """A small model, the recipe's draft, proposes what the target verifies."""

    has_model = True
    kind: Literal["draft_model"] = Field(default="draft_model", description="The name of this method.")
    use_heterogeneous_vocab: bool = Field(default=False, description=HETEROGENEOUS_VOCAB)


class Ngram(DraftMethod):
    """The text itself proposes what followed its last tokens where they stood before."""

    kind: Literal["ngram"] = Field(description="The name of this method.")
    prompt_lookup_min: LookupTokens = Field(
        default=2, description="The fewest of the last tokens that must have stood there before."
    )
    prompt_lookup_max: LookupTokens = Field(
        default=8, description="How many of the last tokens are looked up; the longest match counts."
    )
    earlier_answers: KeptTokens | None = Field(default=None, description=EARLIER_ANSWERS)


class Hybrid(DraftMethod):
    """The text itself proposes where a long ending of it stood before, and the draft model elsewhere."""

    has_model = True
    kind: Literal["hybrid"] = Field(description="The name of this method.")
    prompt_lookup_min: LookupTokens = Field(
        default=4, description="The fewest of the last tokens that must have stood there before."
    )
    prompt_lookup_max: LookupTokens = Field(
        default=8, description="How many of the last tokens are looked up; the longest match counts."
    )
    earlier_answers: KeptTokens | None = Field(default=None, description=EARLIER_ANSWERS)
    use_heterogeneous_vocab: bool = Field(default=False, description=HETEROGENEOUS_VOCAB)


class Suffix(DraftMethod):
    """Drafts are the tokens that most often followed the last ones, in the text and in earlier answers.

    The options and their defaults are those of vLLM 0.33's `SpeculativeConfig`.
    """

    kind: Literal["suffix"] = Field(description="The name of this method.")
    suffix_decoding_max_tree_depth: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=24, description="How many of the last tokens are compared."
    )
    suffix_decoding_max_cached_requests: Annotated[int, Field(ge=0, le=10**6)] = Field(
        default=10000,
        description="How many answers are kept, each for the tenant that it was given to; 0 for none.",
    )
    suffix_decoding_max_spec_factor: Annotated[float, Field(gt=0, le=64)] = Field(
        default=1.0, description="How many tokens are drafted for each of the last ones that stood there."
    )
    suffix_decoding_min_token_prob: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.1, description="How likely a token must be to be drafted, by how often it followed."
    )


class Eagle3Method(DraftMethod):
    """A head proposes from the target's states behind three layers (Li et al. 2025, arXiv 2503.01840)."""

    has_model = is_head = True
    kind: Literal["eagle3"] = Field(description="The name of this method.")


class EagleMethod(DraftMethod):
    """A head proposes from the target's last states (Li et al. 2024, arXiv 2401.15077)."""

    has_model = is_head = True
    kind: Literal["eagle"] = Field(description="The name of this method.")


class MedusaMethod(DraftMethod):
    """Heads propose a token each from the target's last state (Cai et al. 2024, arXiv 2401.10774)."""

    has_model = is_head = True
    kind: Literal["medusa"] = Field(description="The name of this method.")


def _named(method: object) -> object:
    """A method by its name alone is that method with its defaults."""
    return {"kind": method} if isinstance(method, str) else method


Method = Annotated[
    DraftModelMethod | Ngram | Hybrid | Suffix | Eagle3Method | EagleMethod | MedusaMethod,
    Field(discriminator="kind"),
    BeforeValidator(
        _named,
        json_schema_input_type=Literal[
            "draft_model", "ngram", "hybrid", "suffix", "eagle3", "eagle", "medusa"
        ]
        | DraftModelMethod
        | Ngram
        | Hybrid
        | Suffix
        | Eagle3Method
        | EagleMethod
        | MedusaMethod,
    ),
]
METHODS: Mapping[str, type[DraftMethod]] = {
    get_args(method.model_fields["kind"].annotation)[0]: method
    for method in (DraftModelMethod, Ngram, Hybrid, Suffix, Eagle3Method, EagleMethod, MedusaMethod)
}
"""The methods by their names."""
