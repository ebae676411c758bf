"""A head: a few layers that propose tokens from what their target computes, as a Hugging Face folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from trtspec.base.findings import Finding
from trtspec.models.heads.weights import MAPPING
from trtspec.models.tensors import Tensor

Form = Literal["speculators", "specforge", "dflash", "eagle", "medusa"]
"""Whose format a folder has; the last three are those of the methods' own repositories."""
TRAINED_FOR_IT = "take a head that was trained for this target, or train one: trtspec distill"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadDescription(ABC):
    """The description of a head, read from its folder, whoever wrote it; each method has its own class."""

    method: ClassVar[str]
    """The method of a recipe that has such heads."""
    architecture: ClassVar[str]
    """vLLM's name, since TensorRT-LLM has none for a head alone."""
    has_first_norm: ClassVar[bool] = False
    """True if the first layer's input norm is of the embedding alone, unlike that of a layer of a model."""

    folder: Path
    form: Form
    hidden_size: int
    """The width of the target's states that the head reads."""
    vocab_size: int
    """The size of the target's vocabulary."""
    draft_vocab_size: int
    """The size of the head's own vocabulary. Where it is smaller than the target's, `d2t` maps its tokens to
    the target's.
    """
    tensors: Mapping[str, Tensor] = field(repr=False)
    """The places of its tensors, under Speculators' names; Medusa's keep their own. `embed_tokens.weight` and
    `lm_head.weight` are missing where the target's are used, `d2t` and `t2d` where the head has the target's
    vocabulary.
    """
    layer: Mapping[str, Any] | None = None
    """The configuration of the head's decoder layers in transformers' names; None for a head without any. It
    has each of model_type, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
    num_key_value_heads, head_dim, hidden_act, rms_norm_eps, max_position_embeddings, rope_theta, rope_scaling
    (None or a section) and attention_bias.
    """
    verifier: str | None = None
    """The target that the head was trained for, if it says so."""
    unsaid: Mapping[str, Any] = field(default_factory=dict)
    """The keys that vLLM needs to read the whole head, and that `config.json` lacks or has otherwise."""

    @property
    def parameters(self) -> int:
        """The number of parameters; the tables of its vocabulary are none."""
        return sum(tensor.elements for name, tensor in self.tensors.items() if name not in MAPPING)

    @property
    def longest(self) -> int | None:
        """The most tokens that it proposes; None for a head that is asked again for each token."""
        return None

    def facts(self) -> dict[str, Any]:
        """Returns what an inspection lists of heads of this method alone."""
        return {}

    def oddities(self) -> Iterator[Finding]:
        """Finds what is unusual in a head of this method, and what comes of it."""
        yield from ()

    def misfits(self, num_layers: int) -> Iterator[Finding]:
        """Finds what the head reads and a target with so many layers lacks."""
        yield from ()

    @abstractmethod
    def engine_draft(self, num_layers: int) -> dict[str, Any]:
        """Returns what an engine of the head must say of it, on a target with so many layers."""
