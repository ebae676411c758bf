"""SpecForge's format (https://github.com/sgl-project/SpecForge, 0.2), which SGLang reads as it is.

It is a layer's configuration with `draft_vocab_size`; its one decoder layer is named `midlayer`. Its
`eagle_aux_hidden_state_layer_ids` count as SGLang does, whose `set_eagle3_layers_to_capture` adds 1 to each:
1 is the state after the second layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtspec.base.errors import ModelError
from trtspec.models.heads.eagle3 import eagle3_head
from trtspec.models.heads.head import HeadDescription
from trtspec.models.heads.layer import read_layer
from trtspec.models.heads.weights import read_weights
from trtspec.models.hf_config import HfConfig
from trtspec.models.tensors import Tensor

ARCHITECTURE = "LlamaForCausalLMEagle3"


def recognises(folder: Path, config: Mapping[str, Any]) -> bool:
    return config.get("architectures") == [ARCHITECTURE]


def read(folder: Path, config: HfConfig) -> HeadDescription:
    """Reads a head; raises ModelError for a head without its last norm."""
    if not config.get("norm_output", bool, True):
        raise ModelError(
            config.file, "norm_output is false: its logits come from states without the last norm"
        )
    vocab_size = config.size("vocab_size")
    captured = config.section("eagle_config").ids("eagle_aux_hidden_state_layer_ids")
    return eagle3_head(
        folder,
        "specforge",
        read_layer(config),
        _tensors(folder),
        hidden_size=config.get("target_hidden_size", int, None),
        vocab_size=vocab_size,
        draft_vocab_size=config.size("draft_vocab_size", vocab_size),
        aux_layers=tuple(number + 1 for number in captured) or None,
        extra_norms=("fc_norm",) if config.get("fc_norm", bool, False) else (),
    )


def _tensors(folder: Path) -> dict[str, Tensor]:
    """Returns the head's tensors under Speculators' names."""
    return {name.replace("midlayer.", "layers.0."): tensor for name, tensor in read_weights(folder).items()}
