"""Drafts of an EAGLE head; its format is in `models/heads/eagle.py`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trtspec.methods.medusa import NODES
from trtspec.methods.method import Method

_BY_ITSELF = "an engine with EAGLE's head drafts by itself, the same number of tokens in every step"
_NO_FP8 = "TensorRT-LLM's engines have EAGLE in float16 and bfloat16 (examples/eagle/README.md)"
_LACKING = {
    "speculation.mode": "an engine with EAGLE's head verifies what this proposes: its mode is eagle",
    "speculation.policy": _BY_ITSELF,
    "speculation.num_draft_tokens": f"{_BY_ITSELF}; max_draft_len is the size of its tree",
    "speculation.share": _BY_ITSELF,
    "serving.draft_timeout_microseconds": "the server waits for no draft: the step before makes it",
    "target.quantization.weights": _NO_FP8,
    "target.quantization.kv_cache": _NO_FP8,
}


class EagleMethod(Method):
    """A head proposes from the target's last states (Li et al. 2024, arXiv 2401.15077)."""

    has_model = is_head = True
    lacking_inside = _LACKING
    most_inside = NODES
    kind: Literal["eagle"] = Field(description="The name of this method.")
