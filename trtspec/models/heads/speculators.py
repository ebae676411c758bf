"""Speculators' format (https://github.com/vllm-project/speculators, 0.9): heads of EAGLE-3, DFlash, DSpark.

vLLM reads it too (`vllm/transformers_utils/configs/speculators`), and refuses a folder whose first proposal
method or whose verifier is missing.
"""

from __future__ import annotations

from collections.abc import Mapping

from trtspec.base.errors import ModelError
from trtspec.models.heads.dflash import BLOCKS, block_head
from trtspec.models.heads.eagle3 import NORMS, eagle3_head
from trtspec.models.heads.head import HeadDescription, HeadFormat
from trtspec.models.source import HfConfig, Tensor

KIND = "speculators_model_type"
_NO_METHOD = "proposes all tokens at once in a way that no recipe's method supports"
_REFUSED: Mapping[str, str] = {
    "eagle": "is an EAGLE head of Speculators before 0.5, which Speculators 0.9 and vLLM 0.32 no longer read",
    "mlp": "is an MLP speculator, which Speculators 0.9 and vLLM 0.32 no longer support",
    "independent": "wraps a draft model, which Speculators 0.9 no longer supports",
    "mtp": "is a multi-token prediction layer, which belongs into the target's folder",
    "peagle": _NO_METHOD,
    "dflash2": _NO_METHOD,
    "xpress": _NO_METHOD,
}


class SpeculatorsFormat(HeadFormat):
    form = "speculators"

    def recognises(self, config: HfConfig) -> bool:
        return KIND in config.content

    def refuse(self, config: HfConfig) -> None:
        """Raises ModelError for another kind of draft, with the reason."""
        kind = config.get(KIND, str)
        if kind != "eagle3" and kind not in BLOCKS:
            problem = f"{KIND} is {kind}: it {_REFUSED.get(kind, 'is of a kind that trtspec does not know')}"
            raise ModelError(config.folder, problem, "use a head of EAGLE-3, DFlash or DSpark")

    def describe(self, config: HfConfig, tensors: Mapping[str, Tensor]) -> HeadDescription:
        kind, layer = config.get(KIND, str), config.section("transformer_layer_config")
        verifier = config.section("speculators_config").section("verifier").get("name_or_path", str, None)
        if kind in BLOCKS:
            return block_head(
                BLOCKS[kind],
                self.form,
                config,
                layer,
                tensors,
                block=config.size("block_size"),
                draws_first=config.get("sample_from_anchor", bool, False),
                # They count as EAGLE-3's, from 1.
                aux_layers=tuple(number - 1 for number in config.ids("aux_hidden_state_layer_ids")),
                mask=config.token("mask_token_id"),
                verifier=verifier,
            )
        return eagle3_head(
            self.form,
            config,
            layer,
            tensors,
            aux_layers=config.ids("eagle_aux_hidden_state_layer_ids"),
            draft_vocab_size=32000,
            verifier=verifier,
            norm_before_residual=config.get("norm_before_residual", bool, False),
            extra_norms=tuple(name for name in NORMS if config.get(name, bool, False)),
        )
