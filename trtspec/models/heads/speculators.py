"""Speculators' format (https://github.com/vllm-project/speculators, 0.9): heads of EAGLE-3, DFlash, DSpark.

vLLM reads it too (`vllm/transformers_utils/configs/speculators`), and refuses a folder whose first proposal
method or whose verifier is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtspec.base.errors import ModelError
from trtspec.models.heads.dflash import BLOCKS, DFlashDescription, block_head
from trtspec.models.heads.eagle3 import NORMS, eagle3_head
from trtspec.models.heads.head import HeadDescription
from trtspec.models.heads.layer import read_layer
from trtspec.models.heads.weights import read_weights
from trtspec.models.hf_config import HfConfig

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


def recognises(folder: Path, config: Mapping[str, Any]) -> bool:
    return KIND in config


def read(folder: Path, config: HfConfig) -> HeadDescription:
    """Reads a head; raises ModelError for another kind of draft, with the reason."""
    kind = config.get(KIND, str)
    if kind in BLOCKS:
        return _block(folder, BLOCKS[kind], config)
    if kind != "eagle3":
        reason = _REFUSED.get(kind, "is of a kind that trtspec does not know")
        raise ModelError(folder, f"{KIND} is {kind}: it {reason}", "use a head of EAGLE-3, DFlash or DSpark")
    layer = config.section("transformer_layer_config")
    aux = config.ids("eagle_aux_hidden_state_layer_ids")
    return eagle3_head(
        folder,
        "speculators",
        read_layer(layer),
        read_weights(folder),
        hidden_size=config.get("target_hidden_size", int, None),
        vocab_size=layer.size("vocab_size"),
        draft_vocab_size=config.size("draft_vocab_size", 32000),
        aux_layers=aux or None,
        norm_before_residual=config.get("norm_before_residual", bool, False),
        extra_norms=tuple(name for name in NORMS if config.get(name, bool, False)),
        verifier=config.section("speculators_config").section("verifier").get("name_or_path", str, None),
    )


def _block(folder: Path, kind: type[DFlashDescription], config: HfConfig) -> HeadDescription:
    """Reads a head that proposes a block; its layers count as EAGLE-3's, from 1."""
    layer = config.section("transformer_layer_config")
    return block_head(
        folder,
        kind,
        "speculators",
        layer,
        read_weights(folder),
        block=config.size("block_size"),
        draws_first=config.get("sample_from_anchor", bool, False),
        target_hidden_size=config.get("target_hidden_size", int, None),
        draft_vocab_size=config.get("draft_vocab_size", int, None),
        aux_layers=tuple(number - 1 for number in config.ids("aux_hidden_state_layer_ids")),
        mask=config.token("mask_token_id"),
        verifier=config.section("speculators_config").section("verifier").get("name_or_path", str, None),
    )
