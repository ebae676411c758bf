"""Reads the format of DFlash's own repository (https://github.com/z-lab/dflash), and of DSpark's heads.

Both propose a block of tokens in one step. `fc` projects the concatenated target states after some layers to
the head's width, and `hidden_norm` normalizes them. The head's layers read them together with the block's own
positions, of which all but the first are masked. A DSpark head (deepseek-ai) also has `markov_head`, which
makes each token depend on the one before. A head without embedding or `lm_head` uses the target's.

Keys and names are those that vLLM 0.32 and SGLang 0.5.23 read (`qwen3_dflash.py` and `qwen3_dspark.py`,
`dflash_utils.py` and `dspark_config.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from trtspec.base.errors import ModelError, TensorError
from trtspec.base.findings import Finding
from trtspec.models.heads.head import TRAINED_FOR_IT, Form, HeadDescription
from trtspec.models.heads.layer import layer_values
from trtspec.models.heads.weights import check_count, check_shape, read_weights
from trtspec.models.hf_config import DOWNLOAD_AGAIN, SAME_REVISION, HfConfig
from trtspec.models.masked import mask_token
from trtspec.models.tensors import Tensor

_SECTION = "dflash_config"
_MARKOV = "markov_head."


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


BLOCKS: Mapping[str, type[DFlashDescription]] = {"dflash": DFlashDescription, "dspark": DSparkDescription}
"""The descriptions by their methods."""


def recognises(folder: Path, config: Mapping[str, Any]) -> bool:
    return _SECTION in config or _kind(config) is not None


def read(folder: Path, config: HfConfig) -> HeadDescription:
    """Reads a head; raises ModelError or TensorError for an incomplete one."""
    section, found = config.section(_SECTION), _kind(config.content) or DFlashDescription
    # DSpark's own keys; `dflash_config` overrides the top-level keys.
    prefix = "dspark_" if "dspark_block_size" in config.content else ""
    at = section if "block_size" in section.content else config
    layers = section.ids("target_layer_ids") or config.ids(f"{prefix}target_layer_ids")
    first = found is DSparkDescription
    return block_head(
        folder,
        found,
        "dflash",
        config,
        _tensors(folder),
        block=at.size(f"{prefix}block_size"),
        draws_first=section.get("sample_from_anchor", bool, config.get("sample_from_anchor", bool, first)),
        target_hidden_size=config.get("target_hidden_size", int, None),
        draft_vocab_size=config.get("draft_vocab_size", int, None),
        aux_layers=layers,
        mask=mask_token(config),
    )


def _tensors(folder: Path) -> dict[str, Tensor]:
    """Returns the head's tensors by their own names, without the common prefix."""
    return {name.removeprefix("model."): tensor for name, tensor in read_weights(folder).items()}


def block_head(
    folder: Path,
    kind: type[DFlashDescription],
    form: Form,
    layer: HfConfig,
    found: Mapping[str, Tensor],
    *,
    block: int,
    draws_first: bool,
    target_hidden_size: int | None,
    draft_vocab_size: int | None,
    aux_layers: tuple[int, ...],
    mask: int | None,
    verifier: str | None = None,
) -> DFlashDescription:
    """Returns the head with these weights; raises ModelError or TensorError for a wrong one."""
    values, vocab_size = layer_values(layer), layer.size("vocab_size")
    if not aux_layers:
        raise ModelError(
            layer.file, "has no target_layer_ids: the layers of the target that it reads", SAME_REVISION
        )
    if mask is None:
        raise ModelError(layer.file, "has no mask_token_id: the token at masked positions", SAME_REVISION)
    if not draws_first and block < 2:
        raise ModelError(
            layer.file, f"block_size is {block}, which leaves no position to propose a token for"
        )
    head = kind(
        folder=folder,
        form=form,
        hidden_size=target_hidden_size or values["hidden_size"],
        vocab_size=vocab_size,
        draft_vocab_size=draft_vocab_size or vocab_size,
        tensors=found,
        layer=values,
        verifier=verifier,
        block=block,
        draws_first=draws_first,
        aux_layers=aux_layers,
        mask=mask,
    )
    check_count(folder, "num_hidden_layers", values["num_hidden_layers"], found)
    _check_tensors(head)
    return head


def _kind(config: Mapping[str, Any]) -> type[DFlashDescription] | None:
    """Returns the description of the heads whose class a configuration names; None for another class."""
    names = [name.lower() for name in config.get("architectures") or () if isinstance(name, str)]
    return next((BLOCKS[kind] for kind in ("dspark", "dflash") if any(kind in name for name in names)), None)


def _check_tensors(head: DFlashDescription) -> None:
    """Raises TensorError for a head without the parts that every kind has."""
    assert head.layer is not None
    hidden, found = head.layer["hidden_size"], head.tensors
    shapes = {
        "fc.weight": (hidden, len(head.aux_layers) * head.hidden_size),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for name, shape in shapes.items():
        check_shape(head.folder, found, name, shape)
    layers = {f"layers.{number}" for number in range(head.layer["num_hidden_layers"])}
    if missing := sorted(layers - {".".join(name.split(".")[:2]) for name in found}):
        raise TensorError(head.folder, f"{missing[0]}: is missing", DOWNLOAD_AGAIN)
    if isinstance(head, DSparkDescription) and not any(name.startswith(_MARKOV) for name in found):
        raise TensorError(head.folder, f"{_MARKOV}*: is missing", DOWNLOAD_AGAIN)
