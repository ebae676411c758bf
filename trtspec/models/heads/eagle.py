"""The format of EAGLE's own repository (https://github.com/SafeAILab/EAGLE), for EAGLE and EAGLE-3 heads.

The configuration is that of a Llama of one layer; `draft_vocab_size` is what tells an EAGLE-3 head. An EAGLE
head (https://arxiv.org/abs/2401.15077) projects a token's embedding, concatenated with the output of the
target's last norm, to its layer's width by `fc`. It uses the target's `lm_head`, and has no norm before its
first layer or after its last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trtspec.models.heads.eagle3 import eagle3_head, in_first_layer
from trtspec.models.heads.head import HeadDescription, HeadFormat, layer_shapes, read_layer
from trtspec.models.source import PICKLES, HfConfig, Tensor, read_tensors

TARGET_ARCHITECTURE = "EagleForCausalLM"
"""TensorRT-LLM's name of a Llama with such a head."""
_TOKENIZERS = ("tokenizer.json", "tokenizer.model")


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleDescription(HeadDescription):
    """An EAGLE head, which reads the target's last states."""

    method: ClassVar[str] = "eagle"
    architecture: ClassVar[str] = "EagleLlamaForCausalLM"

    optional = ("fc.bias", "embed_tokens.weight")

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        hidden = self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            "fc.weight": (hidden, 2 * hidden),
            "fc.bias": (hidden,),
            "embed_tokens.weight": (self.vocab_size, hidden),
        }
        for number in range(self.layer["num_hidden_layers"]):
            shapes |= layer_shapes(self.layer, number, hidden)
            if number:
                shapes[f"layers.{number}.input_layernorm.weight"] = (hidden,)
        return shapes

    def engine_draft(self, num_layers: int) -> dict[str, Any]:
        own_embedding = "embed_tokens.weight" in self.tensors
        return {"own_embedding": own_embedding, "fc_bias": "fc.bias" in self.tensors}


class EagleFormat(HeadFormat):
    form = "eagle"

    def recognises(self, config: HfConfig) -> bool:
        if config.content.get("draft_vocab_size"):
            return True
        if config.content.get("num_hidden_layers") != 1:
            return False
        if any(path.suffix == ".safetensors" for path in config.folder.iterdir()):
            return "fc.weight" in read_tensors(config.folder)
        is_pickle = any(path.suffix in PICKLES for path in config.folder.iterdir())
        return is_pickle and not any((config.folder / name).exists() for name in _TOKENIZERS)

    def name_of(self, tensor: str) -> str:
        return in_first_layer(tensor)

    def describe(self, config: HfConfig, tensors: Mapping[str, Tensor]) -> HeadDescription:
        if config.content.get("draft_vocab_size"):
            return eagle3_head(self.form, config, config, tensors)
        layer, vocab_size = read_layer(config), config.size("vocab_size")
        return EagleDescription(
            folder=config.folder,
            form=self.form,
            hidden_size=layer["hidden_size"],
            vocab_size=vocab_size,
            draft_vocab_size=vocab_size,
            tensors=tensors,
            layer=layer,
        )
