"""The format of EAGLE's own repository (https://github.com/SafeAILab/EAGLE), for EAGLE and EAGLE-3 heads.

The configuration is that of a Llama of one layer; `draft_vocab_size` is what tells an EAGLE-3 head. An EAGLE
head (https://arxiv.org/abs/2401.15077) projects a token's embedding, concatenated with the output of the
target's last norm, to its layer's width by `fc`. It uses the target's `lm_head`, and has no norm before its
first layer or after its last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from trtspec.models.heads.eagle3 import eagle3_head
from trtspec.models.heads.head import HeadDescription
from trtspec.models.heads.layer import layer_shapes, read_layer
from trtspec.models.heads.weights import check_count, check_shapes, read_weights
from trtspec.models.hf_config import HfConfig
from trtspec.models.tensors import PICKLES, Tensor, read_tensors

TARGET_ARCHITECTURE = "EagleForCausalLM"
"""TensorRT-LLM's name of a Llama with such a head."""
_TOKENIZERS = ("tokenizer.json", "tokenizer.model")


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleDescription(HeadDescription):
    """An EAGLE head, which reads the target's last states."""

    method: ClassVar[str] = "eagle"
    architecture: ClassVar[str] = "EagleLlamaForCausalLM"

    def engine_draft(self, num_layers: int) -> dict[str, Any]:
        own_embedding = "embed_tokens.weight" in self.tensors
        return {"own_embedding": own_embedding, "fc_bias": "fc.bias" in self.tensors}


def recognises(folder: Path, config: Mapping[str, Any]) -> bool:
    if config.get("draft_vocab_size"):
        return True
    if config.get("num_hidden_layers") != 1:
        return False
    if any(path.suffix == ".safetensors" for path in folder.iterdir()):
        return "fc.weight" in read_tensors(folder)
    is_pickle = any(path.suffix in PICKLES for path in folder.iterdir())
    return is_pickle and not any((folder / name).exists() for name in _TOKENIZERS)


def read(folder: Path, config: HfConfig) -> HeadDescription:
    layer, vocab_size, found = read_layer(config), config.size("vocab_size"), _tensors(folder)
    if config.content.get("draft_vocab_size"):
        return eagle3_head(
            folder,
            "eagle",
            layer,
            found,
            hidden_size=config.get("target_hidden_size", int, None),
            vocab_size=vocab_size,
            draft_vocab_size=config.size("draft_vocab_size"),
            aux_layers=None,
        )
    hidden = layer["hidden_size"]
    check_count(folder, "num_hidden_layers", layer["num_hidden_layers"], found)
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, 2 * hidden),
        "fc.bias": (hidden,),
        "embed_tokens.weight": (vocab_size, hidden),
    }
    for number in range(layer["num_hidden_layers"]):
        shapes |= layer_shapes(layer, number, hidden)
        if number:
            shapes[f"layers.{number}.input_layernorm.weight"] = (hidden,)
    check_shapes(folder, found, shapes, {"fc.bias", "embed_tokens.weight"})
    return EagleDescription(
        folder=folder,
        form="eagle",
        hidden_size=hidden,
        vocab_size=vocab_size,
        draft_vocab_size=vocab_size,
        tensors=found,
        layer=layer,
    )


def _tensors(folder: Path) -> dict[str, Tensor]:
    """Returns the head's tensors under Speculators' names."""
    return {name.replace("midlayer.", "layers.0."): tensor for name, tensor in read_weights(folder).items()}
