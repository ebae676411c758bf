"""SpecForge's format (https://github.com/sgl-project/SpecForge, 0.2), which SGLang reads as it is.

It is a layer's configuration with `draft_vocab_size`; its one decoder layer is named `midlayer`. Its
`eagle_aux_hidden_state_layer_ids` count as SGLang does, whose `set_eagle3_layers_to_capture` adds 1 to each:
1 is the state after the second layer.
"""

from __future__ import annotations

from collections.abc import Mapping

from trtspec.base.errors import ModelError
from trtspec.models.heads.eagle3 import Eagle3Description
from trtspec.models.heads.format import HeadFormat
from trtspec.models.heads.head import HeadDescription
from trtspec.models.heads.layer import read_layer
from trtspec.models.hf_config import HfConfig
from trtspec.models.tensors import Tensor

ARCHITECTURE = "LlamaForCausalLMEagle3"


class SpecForgeFormat(HeadFormat):
    form = "specforge"

    def recognises(self, config: HfConfig) -> bool:
        return config.content.get("architectures") == [ARCHITECTURE]

    def name_of(self, tensor: str) -> str:
        return tensor.replace("midlayer.", "layers.0.")

    def refuse(self, config: HfConfig) -> None:
        """Raises ModelError for a head without its last norm."""
        if not config.get("norm_output", bool, True):
            problem = "norm_output is false: its logits come from states without the last norm"
            raise ModelError(config.file, problem)

    def describe(self, config: HfConfig, tensors: Mapping[str, Tensor]) -> HeadDescription:
        layer, vocab_size = read_layer(config), config.size("vocab_size")
        captured = config.section("eagle_config").ids("eagle_aux_hidden_state_layer_ids")
        return Eagle3Description(
            folder=config.folder,
            form=self.form,
            hidden_size=config.size("target_hidden_size", layer["hidden_size"]),
            vocab_size=vocab_size,
            draft_vocab_size=config.size("draft_vocab_size", vocab_size),
            tensors=tensors,
            layer=layer,
            aux_layers=tuple(number + 1 for number in captured) or None,
            extra_norms=("fc_norm",) if config.get("fc_norm", bool, False) else (),
        )
