"""Drafts of a small model."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trtspec.methods.method import HETEROGENEOUS, HETEROGENEOUS_VOCAB, PARALLEL, Method


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
