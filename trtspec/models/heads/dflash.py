"""Reads the format of DFlash's own repository (https://github.com/z-lab/dflash), and of DSpark's heads.

Both propose a block of tokens in one step. `fc` projects the concatenated target states after some layers to
the head's width, and `hidden_norm` normalizes them. The head's layers read them together with the block's own
positions, of which all but the first are masked. A DSpark head (deepseek-ai) also has `markov_head`, which
makes each token depend on the one before. A head without embedding or `lm_head` uses the target's.

Keys and names are those that vLLM 0.32 and SGLang 0.5.23 read (`qwen3_dflash.py` and `qwen3_dspark.py`,
`dflash_utils.py` and `dspark_config.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trtspec.base.errors import ModelError
from trtspec.base.findings import Finding
from trtspec.models.heads.head import TRAINED_FOR_IT, Form, HeadDescription, HeadFormat, layer_values
from trtspec.models.masked import mask_token
from trtspec.models.source import SAME_REVISION, HfConfig, Tensor

_SECTION = "dflash_config"


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashDescription(HeadDescription):
    """A head that proposes a block of tokens in one step."""

    method: ClassVar[str] = "dflash"
    architecture: ClassVar[str] = "DFlashDraftModel"

    block: int
    """The number of positions of a block."""
    draws_first: bool
    """True if the block's first position proposes too; else it holds the known token."""
    aux_layers: tuple[int, ...]
    """The layers of the target, counted from 0, whose output states are read."""
    mask: int
    """The token at masked positions."""

    @property
    def longest(self) -> int:
        return self.block if self.draws_first else self.block - 1

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        hidden = self.layer["hidden_size"]
        return {
            "fc.weight": (hidden, len(self.aux_layers) * self.hidden_size),
            "hidden_norm.weight": (hidden,),
            "norm.weight": (hidden,),
        }

    def further(self) -> Collection[str]:
        return [f"layers.{number}." for number in range(self.num_parts[1])]

    def facts(self) -> dict[str, Any]:
        return {"block_size": self.block, "aux_layers": list(self.aux_layers), "mask_token_id": self.mask}

    def misfits(self, num_layers: int) -> Iterator[Finding]:
        beyond = [number for number in self.aux_layers if not 0 <= number < num_layers]
        if beyond:
            problem = (
                f"the head reads the states after layer {beyond[0]}, counted from 0, but the target has "
                f"{num_layers} layers"
            )
            yield Finding("auxiliary layers", problem, TRAINED_FOR_IT, effect="the head cannot read them")

    def engine_draft(self, num_layers: int) -> dict[str, Any]:
        problem = f"is a head of {self.method}, of which trtspec builds no engine"
        raise ModelError(self.folder, problem, "serve it with vLLM or SGLang")


@dataclass(frozen=True, slots=True, kw_only=True)
class DSparkDescription(DFlashDescription):
    """A head in whose blocks each token depends on the one before."""

    method: ClassVar[str] = "dspark"
    architecture: ClassVar[str] = "Qwen3DSparkModel"

    def further(self) -> Collection[str]:
        return [*DFlashDescription.further(self), "markov_head."]


BLOCKS: Mapping[str, type[DFlashDescription]] = {"dflash": DFlashDescription, "dspark": DSparkDescription}
"""The descriptions by their methods."""


class DFlashFormat(HeadFormat):
    form = "dflash"

    def recognises(self, config: HfConfig) -> bool:
        return _SECTION in config.content or _kind(config) is not None

    def name_of(self, tensor: str) -> str:
        return tensor.removeprefix("model.")

    def describe(self, config: HfConfig, tensors: Mapping[str, Tensor]) -> HeadDescription:
        section, found = config.section(_SECTION), _kind(config) or DFlashDescription
        # DSpark's own keys; `dflash_config` overrides the top-level keys.
        prefix = "dspark_" if "dspark_block_size" in config.content else ""
        at = section if "block_size" in section.content else config
        first = config.get("sample_from_anchor", bool, found is DSparkDescription)
        return block_head(
            found,
            self.form,
            config,
            config,
            tensors,
            block=at.size(f"{prefix}block_size"),
            draws_first=section.get("sample_from_anchor", bool, first),
            aux_layers=section.ids("target_layer_ids") or config.ids(f"{prefix}target_layer_ids"),
            mask=mask_token(config),
        )


def block_head(
    kind: type[DFlashDescription],
    form: Form,
    config: HfConfig,
    layer: HfConfig,
    tensors: Mapping[str, Tensor],
    *,
    block: int,
    draws_first: bool,
    aux_layers: tuple[int, ...],
    mask: int | None,
    verifier: str | None = None,
) -> DFlashDescription:
    """Returns the head of this configuration; `layer` is that of its layers. Raises ModelError."""
    values, vocab_size = layer_values(layer), layer.size("vocab_size")
    if not aux_layers:
        problem = "has no target_layer_ids: the layers of the target that it reads"
        raise ModelError(config.file, problem, SAME_REVISION)
    if mask is None:
        raise ModelError(config.file, "has no mask_token_id: the token at masked positions", SAME_REVISION)
    if not draws_first and block < 2:
        problem = f"block_size is {block}, which leaves no position to propose a token for"
        raise ModelError(config.file, problem)
    return kind(
        folder=config.folder,
        form=form,
        hidden_size=config.size("target_hidden_size", values["hidden_size"]),
        vocab_size=vocab_size,
        draft_vocab_size=config.size("draft_vocab_size", vocab_size),
        tensors=tensors,
        layer=values,
        verifier=verifier,
        block=block,
        draws_first=draws_first,
        aux_layers=aux_layers,
        mask=mask,
    )


def _kind(config: HfConfig) -> type[DFlashDescription] | None:
    """Returns the description of the heads whose class a configuration names; None for another class."""
    names = [name.lower() for name in config.content.get("architectures") or () if isinstance(name, str)]
    return next((BLOCKS[kind] for kind in ("dspark", "dflash") if any(kind in name for name in names)), None)
