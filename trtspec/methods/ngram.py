"""Drafts of the text itself."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trtspec.methods.lookup import TenantLookupMethod


class Ngram(TenantLookupMethod):
    """The text itself proposes the tokens that followed its last tokens earlier in the text."""

    gives_way_to = None
    kind: Literal["ngram"] = Field(description="The name of this method.")
