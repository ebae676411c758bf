"""Drafts of heads, which read what the target computes; `models/heads/` reads their files.

The layers that a target has for multi-token prediction are heads too: `models/mtp.py` finds them.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trtspec.methods.method import Method, lacking_with

NODES = 63
"""Nodes of the tree that Medusa's authors and NVIDIA's examples use; an engine verifies one token more."""

_TREE = "max_draft_len is the size of its tree"
_NO_WAIT = {"serving.draft_timeout_microseconds": "the server waits for no draft: the step before makes it"}
_NO_FP8 = "TensorRT-LLM's engines have EAGLE in float16 and bfloat16 (examples/eagle/README.md)"


class Eagle3Method(Method):
    """A head proposes from the target's states after three layers (Li et al. 2025, arXiv 2503.01840)."""

    has_model = is_head = True
    kind: Literal["eagle3"] = Field(description="The name of this method.")


class EagleMethod(Method):
    """A head proposes from the target's last states (Li et al. 2024, arXiv 2401.15077)."""

    has_model = is_head = True
    lacking_inside = {  # noqa: RUF012
        **lacking_with("EAGLE's head", "eagle", _TREE),
        **_NO_WAIT,
        "target.quantization.weights": _NO_FP8,
        "target.quantization.kv_cache": _NO_FP8,
    }
    most_inside = NODES
    kind: Literal["eagle"] = Field(description="The name of this method.")


class MedusaMethod(Method):
    """Heads propose a token each from the target's last state (Cai et al. 2024, arXiv 2401.10774)."""

    has_model = is_head = True
    lacking_inside = {**lacking_with("Medusa's heads", "medusa", _TREE), **_NO_WAIT}  # noqa: RUF012
    most_inside = NODES
    kind: Literal["medusa"] = Field(description="The name of this method.")


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
