"""The methods, and their table: a recipe, its commands and the README have those of this table.

The formats of heads are in `models/heads/`, and `models/mtp.py` finds a target's own layers for multi-token
prediction.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from trtspec.base.findings import Finding
from trtspec.methods.method import HETEROGENEOUS, HETEROGENEOUS_VOCAB, PARALLEL, Method, lacking_with


class DraftModelMethod(Method):
    """A small model, the recipe's draft, proposes what the target verifies."""

    has_model = True
    added = {HETEROGENEOUS: False, PARALLEL: False}  # noqa: RUF012
    gives_way_to = None
    kind: Literal["draft_model"] = Field(default="draft_model", description="The name of this method.")
    use_heterogeneous_vocab: bool = Field(default=False, description=HETEROGENEOUS_VOCAB)
    parallel_drafting: bool = Field(
        default=False,
        description="Whether the draft proposes all tokens in one step, for which it must be trained (PARD, "
        "An et al. 2025, arXiv 2504.18583).",
    )


LookupTokens = Annotated[int, Field(ge=1, le=64)]
LEAST = "The smallest number of last tokens that must match."


class LookupMethod(Method):
    """A method that proposes what followed the last tokens where they stood before."""

    prompt_lookup_min: LookupTokens = Field(default=2, description=LEAST)
    prompt_lookup_max: LookupTokens = Field(
        default=8,
        description="The largest number of last tokens that are looked up; the longest match counts.",
    )

    def contradictions(self) -> Iterator[Finding]:
        least, most = self.prompt_lookup_min, self.prompt_lookup_max
        if least > most:
            problem = f"{least} is more than prompt_lookup_max, which is {most}"
            yield Finding("prompt_lookup_min", problem, f"at most {most}")


class TenantLookupMethod(LookupMethod):
    """A method that can look tokens up in the earlier answers of a request's tenant too."""

    added = {"earlier_answers": None}  # noqa: RUF012
    earlier_answers: Annotated[int, Field(ge=1, le=10**6)] | None = Field(
        default=None,
        description="Look up this many tokens of earlier answers too, only for the tenant that got them; "
        "about 300 bytes each. None if left out.",
    )


class Ngram(TenantLookupMethod):
    """The text itself proposes the tokens that followed its last tokens earlier in the text."""

    gives_way_to = None
    kind: Literal["ngram"] = Field(description="The name of this method.")


class Hybrid(TenantLookupMethod):
    """The text itself proposes if its last tokens occurred before. Otherwise the draft model proposes."""

    has_model = True
    gives_way_to = "draft_model"
    added = {**TenantLookupMethod.added, HETEROGENEOUS: False}  # noqa: RUF012
    kind: Literal["hybrid"] = Field(description="The name of this method.")
    prompt_lookup_min: LookupTokens = Field(default=4, description=LEAST)
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


NODES = 63
"""Nodes of the tree that Medusa's authors and NVIDIA's examples use; an engine verifies one token more."""
SIZE_OF_TREE = "max_draft_len is the size of its tree"
NO_WAIT = {"serving.draft_timeout_microseconds": "the server waits for no draft: the step before makes it"}


class MedusaMethod(Method):
    """Heads propose a token each from the target's last state (Cai et al. 2024, arXiv 2401.10774)."""

    has_model = is_head = True
    lacking_inside = {**lacking_with("Medusa's heads", "medusa", SIZE_OF_TREE), **NO_WAIT}  # noqa: RUF012
    most_inside = NODES
    kind: Literal["medusa"] = Field(description="The name of this method.")


class Eagle3Method(Method):
    """A head proposes from the target's states after three layers (Li et al. 2025, arXiv 2503.01840)."""

    has_model = is_head = True
    kind: Literal["eagle3"] = Field(description="The name of this method.")


_NO_FP8 = "TensorRT-LLM's engines have EAGLE in float16 and bfloat16 (examples/eagle/README.md)"


class EagleMethod(Method):
    """A head proposes from the target's last states (Li et al. 2024, arXiv 2401.15077)."""

    has_model = is_head = True
    lacking_inside = {  # noqa: RUF012
        **lacking_with("EAGLE's head", "eagle", SIZE_OF_TREE),
        **NO_WAIT,
        "target.quantization.weights": _NO_FP8,
        "target.quantization.kv_cache": _NO_FP8,
    }
    most_inside = NODES
    kind: Literal["eagle"] = Field(description="The name of this method.")


class MtpMethod(Method):
    """Layers that the target was trained with propose from its last states (DeepSeek-V3)."""

    is_head = in_target = True
    kind: Literal["mtp"] = Field(description="The name of this method.")


class DFlashMethod(Method):
    """A head fills a block of masked tokens at once, from the target's states after some layers (z-lab)."""

    has_model = is_head = True
    kind: Literal["dflash"] = Field(description="The name of this method.")


class DSparkMethod(Method):
    """A head fills a block at once, in which each token depends on the one before (DeepSeek)."""

    has_model = is_head = True
    kind: Literal["dspark"] = Field(description="The name of this method.")


class NgramGpu(LookupMethod):
    """The text itself proposes, as with `ngram`; the GPU does the look-up, so no step waits for the CPU."""

    of_servers = True
    kind: Literal["ngram_gpu"] = Field(description="The name of this method.")


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


METHODS: dict[str, type[Method]] = {
    "draft_model": DraftModelMethod,
    "ngram": Ngram,
    "hybrid": Hybrid,
    "suffix": Suffix,
    "eagle3": Eagle3Method,
    "eagle": EagleMethod,
    "medusa": MedusaMethod,
    "mtp": MtpMethod,
    "dflash": DFlashMethod,
    "dspark": DSparkMethod,
    "ngram_gpu": NgramGpu,
    "lookahead": LookaheadMethod,
}
"""The methods by their names."""
