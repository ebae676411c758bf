"""A draft of some of a target's own layers, as a Hugging Face folder: it needs no training and no download.

Draft & Verify (Zhang et al. 2023, arXiv 2309.08168) and LayerSkip (Elhoushi et al. 2024, arXiv 2404.16710)
draft with the target's layers too. Which ones are worth keeping differs from model to model, so that it is
measured like any other draft.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from trtspec.atomic import publish, remove, temporary
from trtspec.errors import ModelError, TensorError
from trtspec.models.hf_config import DOWNLOAD_AGAIN
from trtspec.models.source import Source
from trtspec.models.tensors import SINGLE, Tensor
from trtspec.plan.facts import TOKENIZER_FILES

_LAYER = re.compile(r"(.*\blayers\.)(\d+)(\..*)")
_CHUNK = 16 << 20
_COPIED = (*TOKENIZER_FILES, "generation_config.json", "hf_quant_config.json")
_BY_LAYER = ("layer_types",)
"""Keys of `config.json` with one value a layer."""


def spread(count: int, of: int) -> tuple[int, ...]:
    """Returns `count` of so many layers, evenly from the first to the last, which both count most."""
    if count == 1:
        return (0,)
    return tuple(round(place * (of - 1) / (count - 1)) for place in range(count))


def write_layers(source: Source, layers: Sequence[int], folder: Path) -> None:
    """Writes a model of these layers of `source` alone, in this order; weights are copied as they are.

    A folder that is there is whole, and stays. Raises ModelError for layers that the model lacks.
    """
    if folder.is_dir():
        return
    if wrong := [layer for layer in layers if not 0 <= layer < source.num_hidden_layers]:
        problem = f"has no layer {wrong[0]}: its layers are 0 to {source.num_hidden_layers - 1}"
        raise ModelError(source.folder, problem, "name others with --layers")
    made = temporary(folder)
    remove(made)
    made.mkdir(parents=True)
    config = _config(source.config.content, layers)
    (made / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    _copy_weights(source.tensors, layers, made / SINGLE)
    for name in _COPIED:
        if (source.folder / name).is_file():
            shutil.copyfile(source.folder / name, made / name)
    publish(made, folder)


def _config(config: Mapping[str, Any], layers: Sequence[int]) -> dict[str, Any]:
    by_layer = {key: [config[key][layer] for layer in layers] for key in _BY_LAYER if config.get(key)}
    return {**config, "num_hidden_layers": len(layers), **by_layer}


def _copy_weights(tensors: Mapping[str, Tensor], layers: Sequence[int], file: Path) -> None:
    """Writes the tensors of the layers under their new numbers, and those of no layer, piece by piece."""
    kept: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        match = _LAYER.fullmatch(name)
        if match is None:
            kept[name] = tensor
        else:
            places = [new for new, old in enumerate(layers) if old == int(match[2])]
            kept |= {f"{match[1]}{new}{match[3]}": tensor for new in places}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in kept.items():
        size = tensor.end - tensor.start
        offsets = [end, end + size]
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": offsets}
        end += size
    written = json.dumps(header).encode()
    written += b" " * (-len(written) % 8)
    with file.open("wb") as out:
        out.write(len(written).to_bytes(8, "little") + written)
        for tensor in kept.values():
            _copy(tensor, out)


def _copy(tensor: Tensor, out: BinaryIO) -> None:
    with tensor.file.open("rb") as weights:
        weights.seek(tensor.start)
        left = tensor.end - tensor.start
        while left:
            piece = weights.read(min(left, _CHUNK))
            if not piece:
                problem = f"{tensor.name}: the file was cut off while it was read"
                raise TensorError(tensor.file, problem, DOWNLOAD_AGAIN)
            out.write(piece)
            left -= len(piece)
