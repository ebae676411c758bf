"""Drafts of an EAGLE head; its format is in `models/heads/eagle.py`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trtspec.methods.medusa import NO_WAIT, NODES, SIZE_OF_TREE
from trtspec.methods.method import Method, lacking_with

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
