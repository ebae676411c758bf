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
    """The description of a head, read from its folder, whoever wrote it.

    `hidden_size` is the width of the target's states that it reads, `vocab_size` the target's, and
    `draft_vocab_size` its own, which `d2t` maps to the target's where it is smaller. `aux_layers` say which
    states of the target EAGLE-3 reads: 2 is the state behind the target's second layer, which the third one
    reads, as Speculators and vLLM count, and transformers' `hidden_states`. They are None where the folder
    leaves that to the reader: `default_aux_layers`. `count` is how many tokens Medusa's heads propose, 1 for
    a head that is asked again for each token.

    `layer` is the configuration of its decoder layers in transformers' names, None for Medusa; it has each of
    model_type, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads,
    head_dim, hidden_act, rms_norm_eps, max_position_embeddings, rope_theta, rope_scaling (None or a section)
    and attention_bias. `norm_before_residual` and `extra_norms` are Speculators' options of an EAGLE-3 head;
    the latter has those of `norm_before_fc`, `fc_norm` and `norm_output` that are on. For Medusa
    `num_layers` says how many residual blocks each of its heads has. `verifier` is the target that the head
    was trained for, if it says so.
    """

    folder: Path
    method: HeadMethod
    form: Form
    hidden_size: int
    vocab_size: int
    draft_vocab_size: int
    parameters: int
    count: int = 1
    num_layers: int = 1
    aux_layers: tuple[int, ...] | None = None
    norm_before_residual: bool = False
    extra_norms: tuple[str, ...] = ()
    layer: Mapping[str, Any] | None = None
    verifier: str | None = None


def default_aux_layers(num_hidden_layers: int) -> tuple[int, int, int]:
    """Returns the states that EAGLE-3 reads where a head does not say which (EAGLE's own, and vLLM's)."""
    return 2, num_hidden_layers // 2, num_hidden_layers - 3
