"""Drafts of the text itself where it repeats itself, and of a small model elsewhere."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trtspec.methods.lookup import LEAST, LookupTokens, TenantLookupMethod
from trtspec.methods.method import HETEROGENEOUS, HETEROGENEOUS_VOCAB


class Hybrid(TenantLookupMethod):
    """The text itself proposes if its last tokens occurred before. Otherwise the draft model proposes."""

    has_model = True
    gives_way_to = "draft_model"
    added = {**TenantLookupMethod.added, HETEROGENEOUS: False}  # noqa: RUF012
    kind: Literal["hybrid"] = Field(description="The name of this method.")
    prompt_lookup_min: LookupTokens = Field(default=4, description=LEAST)
    use_heterogeneous_vocab: bool = Field(default=False, description=HETEROGENEOUS_VOCAB)
