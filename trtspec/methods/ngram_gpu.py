"""Drafts of the text itself, which a server looks up on its GPU."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trtspec.methods.lookup import LookupMethod


class NgramGpu(LookupMethod):
    """The text itself proposes, as with `ngram`; the GPU does the look-up, so no step waits for the CPU."""

    of_servers = True
    kind: Literal["ngram_gpu"] = Field(description="The name of this method.")
