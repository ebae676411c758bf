"""Reads a head of any of the published formats, without the data of its weights.

A format is a module with a `HeadFormat`, and its line in `FORMATS`. Speculators' own
(https://github.com/vllm-project/speculators, 0.9) holds heads of EAGLE-3, DFlash and DSpark. vLLM reads
it too (`vllm/transformers_utils/configs/speculators`), and refuses a folder whose first proposal method
or whose verifier is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from trtspec.base.errors import ModelError
from trtspec.models.heads.dflash import BLOCKS, DFlashFormat, block_head
from trtspec.models.heads.eagle import EagleFormat
from trtspec.models.heads.eagle3 import NORMS, SpecForgeFormat, eagle3_head
from trtspec.models.heads.head import HeadDescription, HeadFormat
from trtspec.models.heads.medusa import MedusaFormat
from trtspec.models.source import HfConfig, Source, Tensor, read_model_config, read_source, read_tensors

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


FORMATS: Sequence[HeadFormat] = (
    SpeculatorsFormat(),
    SpecForgeFormat(),
    DFlashFormat(),
    MedusaFormat(),
    EagleFormat(),
)
"""The formats, in the order in which they are tried."""

_LOAD = "torch.load({0!r}, weights_only=True)"


def is_head(folder: Path) -> bool:
    """Says whether a folder has a head, or another draft in a head's format, complete or not."""
    try:
        return _format(folder)[1] is not None
    except ModelError:
        return False


def read_model(folder: Path, *, whole: bool = False) -> Source:
    """Reads a folder that must have a model, as `read_source`; raises ModelError for a head too."""
    config, found = _format(folder)
    if found:
        method = read_head(folder).method
        repair = f"name it as the draft, with speculation.method: {method}"
        raise ModelError(folder, f"is a head of method {method}, not a model", repair)
    return read_source(folder, whole=whole, written=config)


def read_head(folder: Path) -> HeadDescription:
    """Reads a head's folder; raises ModelError or TensorError if it has no head, or an incomplete one."""
    config, found = _format(folder)
    if found is None:
        problem = "is no head in a known format: Speculators, SpecForge, or a method's own repository"
        repair = "name the folder of a head in one of these formats, or write method: draft_model"
        raise ModelError(folder, problem, repair)
    found.refuse(config)
    repair = f"in a sandbox: safetensors.torch.save_file({_LOAD}, {found.weights!r})"
    tensors = read_tensors(folder, found.weights, repair)
    head = found.describe(config, {found.name_of(name): tensor for name, tensor in tensors.items()})
    head.check_tensors()
    return head


def _format(folder: Path) -> tuple[HfConfig, HeadFormat | None]:
    """Returns a folder's `config.json` and its format; raises ModelError for a file that cannot be read."""
    config = read_model_config(folder)
    return config, next((each for each in FORMATS if each.recognises(config)), None)
