"""Describes an EAGLE-3 head of any format (https://arxiv.org/abs/2503.01840), and SpecForge's format of them.

Names are Speculators'. `fc` projects the concatenated target states to the head's width. The first decoder
layer also reads the embedding of a token, so its attention is twice as wide; `norm` and `lm_head` turn its
output into logits. A head's token plus `d2t` of it is the target's token; `t2d` marks the target's tokens
that the head has. A head without `embed_tokens` or `lm_head` uses its target's.

SpecForge (https://github.com/sgl-project/SpecForge, 0.2) writes what SGLang reads as it is: a layer's
configuration with `draft_vocab_size`, whose one decoder layer is named `midlayer`. Its
`eagle_aux_hidden_state_layer_ids` count as SGLang does, whose `set_eagle3_layers_to_capture` adds 1 to each:
1 is the state after the second layer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trtspec.base.errors import ModelError
from trtspec.base.findings import Finding, note
from trtspec.models.heads.head import (
    MAPPING,
    TRAINED_FOR_IT,
    Form,
    HeadDescription,
    HeadFormat,
    layer_shapes,
    read_layer,
)
from trtspec.models.source import HfConfig, Tensor

NUM_AUX = 3
"""The number of target states that a head reads if it does not name them."""
NORMS = ("norm_before_fc", "fc_norm", "norm_output")
_OF_SPECFORGE = "LlamaForCausalLMEagle3"


def default_aux_layers(num_hidden_layers: int) -> tuple[int, int, int]:
    """Returns the states that EAGLE-3 reads by default (EAGLE's own, and vLLM's)."""
    return 2, num_hidden_layers // 2, num_hidden_layers - 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Description(HeadDescription):
    """An EAGLE-3 head, which reads the target's states after several layers."""

    method: ClassVar[str] = "eagle3"
    architecture: ClassVar[str] = "Eagle3LlamaForCausalLM"
    has_first_norm: ClassVar[bool] = True

    aux_layers: tuple[int, ...] | None
    """The states of the target that the head reads. 2 is the state after the target's second layer, as
    Speculators, vLLM and transformers' `hidden_states` count. None if the folder does not name them: then
    `default_aux_layers`.
    """
    norm_before_residual: bool = False
    """Speculators' option."""
    extra_norms: tuple[str, ...] = ()
    """The active ones of Speculators' options `norm_before_fc`, `fc_norm` and `norm_output`."""

    @property
    def optional(self) -> Collection[str]:
        has_all = self.draft_vocab_size == self.vocab_size
        return "embed_tokens.weight", *((*MAPPING, "lm_head.weight") if has_all else ())

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        hidden, count = self.layer["hidden_size"], len(self.aux_layers or ()) or NUM_AUX
        shapes: dict[str, tuple[int, ...]] = {
            "fc.weight": (hidden, count * self.hidden_size),
            "norm.weight": (hidden,),
            "lm_head.weight": (self.draft_vocab_size, hidden),
            "embed_tokens.weight": (self.vocab_size, hidden),
            "d2t": (self.draft_vocab_size,),
            "t2d": (self.vocab_size,),
            "layers.0.hidden_norm.weight": (hidden,),
        }
        for number in range(self.layer["num_hidden_layers"]):
            shapes |= layer_shapes(self.layer, number, hidden if number else 2 * hidden)
            shapes[f"layers.{number}.input_layernorm.weight"] = (hidden,)
        if "norm_before_fc" in self.extra_norms:
            shapes["input_norm.weight"] = (count * self.hidden_size,)
        if "fc_norm" in self.extra_norms:
            shapes |= {f"fc_norm.{number}.weight": (self.hidden_size,) for number in range(count)}
        return shapes

    def facts(self) -> dict[str, Any]:
        return {
            "aux_layers": list(self.aux_layers or ()) or None,
            "extra_norms": list(self.extra_norms) or None,
        }

    def oddities(self) -> Iterator[Finding]:
        if self.aux_layers is None:
            problem = "the head names none; engines read those after layers 2, N/2 and N-3 of N"
            yield note("aux_layers", problem)
        elif self.form == "specforge":
            problem = "are counted as SGLang does; vLLM would read the states of one layer earlier"
            yield note("aux_layers", problem, "give it to vLLM in Speculators' format")

    def misfits(self, num_layers: int) -> Iterator[Finding]:
        read = self.aux_layers or default_aux_layers(num_layers)
        beyond = [number for number in read if not 0 <= number <= num_layers]
        if beyond or len(set(read)) < len(read):
            says = "the head reads" if self.aux_layers else "the head names none, so by default it reads"
            problem = (
                f"{says} the states after layers {', '.join(map(str, read))}, but the target has "
                f"{num_layers} layers"
            )
            repair = (
                TRAINED_FOR_IT if self.aux_layers else "name eagle_aux_hidden_state_layer_ids in config.json"
            )
            yield Finding("auxiliary layers", problem, repair, effect="the head cannot read them")

    def engine_draft(self, num_layers: int) -> dict[str, Any]:
        return {
            "own_embedding": "embed_tokens.weight" in self.tensors,
            "aux_layers": sorted(self.aux_layers or default_aux_layers(num_layers)),
            "target_hidden_size": self.hidden_size,
            "vocab_size": self.draft_vocab_size,
            "own_lm_head": "lm_head.weight" in self.tensors,
            "norm_before_residual": self.norm_before_residual,
            "extra_norms": list(self.extra_norms),
        }


def eagle3_head(
    form: Form,
    config: HfConfig,
    layer: HfConfig,
    tensors: Mapping[str, Tensor],
    *,
    aux_layers: tuple[int, ...] = (),
    draft_vocab_size: int | None = None,
    norm_before_residual: bool = False,
    extra_norms: tuple[str, ...] = (),
    verifier: str | None = None,
) -> Eagle3Description:
    """Returns the head of this configuration; `layer` is that of its layers. Raises ModelError.

    A configuration without `draft_vocab_size` means that of the format, or else the target's vocabulary.
    """
    values, vocab_size = read_layer(layer), layer.size("vocab_size")
    return Eagle3Description(
        folder=config.folder,
        form=form,
        hidden_size=config.size("target_hidden_size", values["hidden_size"]),
        vocab_size=vocab_size,
        draft_vocab_size=config.size("draft_vocab_size", draft_vocab_size or vocab_size),
        tensors=tensors,
        layer=values,
        verifier=verifier,
        aux_layers=aux_layers or None,
        norm_before_residual=norm_before_residual,
        extra_norms=extra_norms,
    )


def in_first_layer(tensor: str) -> str:
    """Returns Speculators' name of a tensor whose one decoder layer is named `midlayer`."""
    return tensor.replace("midlayer.", "layers.0.")


class SpecForgeFormat(HeadFormat):
    form = "specforge"

    def recognises(self, config: HfConfig) -> bool:
        return config.content.get("architectures") == [_OF_SPECFORGE]

    def name_of(self, tensor: str) -> str:
        return in_first_layer(tensor)

    def refuse(self, config: HfConfig) -> None:
        """Raises ModelError for a head without its last norm."""
        if not config.get("norm_output", bool, True):
            problem = "norm_output is false: its logits come from states without the last norm"
            raise ModelError(config.file, problem)

    def describe(self, config: HfConfig, tensors: Mapping[str, Tensor]) -> HeadDescription:
        captured = config.section("eagle_config").ids("eagle_aux_hidden_state_layer_ids")
        return eagle3_head(
            self.form,
            config,
            config,
            tensors,
            aux_layers=tuple(number + 1 for number in captured),
            extra_norms=("fc_norm",) if config.get("fc_norm", bool, False) else (),
        )
