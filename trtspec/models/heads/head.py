"""A head: a few layers that propose tokens from what their target computes, as a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

HeadMethod = Literal["eagle3", "eagle", "medusa"]
Form = Literal["speculators", "specforge", "original"]


@dataclass(frozen=True, slots=True)
class Head:
    """What a head's folder says, whoever wrote it.

    `hidden_size` is the width of the target's states that it reads, `vocab_size` the target's, and
    `draft_vocab_size` its own, which `d2t` maps to the target's where it is smaller. `aux_layers` are the
    layers of the target behind which EAGLE-3 reads states, None where the folder leaves that to the reader.
    `count` is how many tokens Medusa's heads propose, 1 for a head that is asked again for each token.
    `layer` is the configuration of its decoder layers, in transformers' names, None for Medusa; `verifier`
    the target it was trained for, if it says so.
    """

    folder: Path
    method: HeadMethod
    form: Form
    hidden_size: int
    vocab_size: int
    draft_vocab_size: int
    parameters: int
    count: int = 1
    aux_layers: tuple[int, ...] | None = None
    norm_before_residual: bool = False
    layer: Mapping[str, Any] | None = None
    verifier: str | None = None
