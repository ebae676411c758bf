"""A head: a few layers that propose tokens from what their target computes, as a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

HeadMethod = Literal["eagle3", "eagle", "medusa"]
HEADS: tuple[HeadMethod, ...] = get_args(HeadMethod)
Form = Literal["speculators", "specforge", "eagle", "medusa"]
"""Whose format a folder has; the last two are those of the methods' own repositories."""


@dataclass(frozen=True, slots=True)
class HeadDescription:
    """The description of a head, read from its folder, whoever wrote it."""

    folder: Path
    method: HeadMethod
    form: Form
    hidden_size: int
    """The width of the target's states that the head reads."""
    vocab_size: int
    """The size of the target's vocabulary."""
    draft_vocab_size: int
    """The size of the head's own vocabulary. Where it is smaller than the target's, `d2t` maps its tokens to
    the target's.
    """
    parameters: int
    count: int = 1
    """The number of tokens that Medusa's heads propose; 1 for a head that is asked again for each token."""
    num_layers: int = 1
    """For Medusa, the number of residual blocks that each of its heads has."""
    aux_layers: tuple[int, ...] | None = None
    """The states of the target that EAGLE-3 reads. 2 is the state behind the target's second layer, which the
    third one reads, as Speculators, vLLM and transformers' `hidden_states` count. None where the folder
    leaves the choice to the reader: `default_aux_layers`.
    """
    norm_before_residual: bool = False
    """Speculators' option of an EAGLE-3 head."""
    extra_norms: tuple[str, ...] = ()
    """Those of Speculators' options `norm_before_fc`, `fc_norm` and `norm_output` of an EAGLE-3 head that are
    on.
    """
    layer: Mapping[str, Any] | None = None
    """The configuration of the head's decoder layers in transformers' names; None for Medusa. It has each of
    model_type, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads,
    head_dim, hidden_act, rms_norm_eps, max_position_embeddings, rope_theta, rope_scaling (None or a section)
    and attention_bias.
    """
    verifier: str | None = None
    """The target that the head was trained for, if it says so."""


def default_aux_layers(num_hidden_layers: int) -> tuple[int, int, int]:
    """Returns the states that EAGLE-3 reads where a head does not say which (EAGLE's own, and vLLM's)."""
    return 2, num_hidden_layers // 2, num_hidden_layers - 3
