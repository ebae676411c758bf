"""A draft of some of a target's own layers, as a Hugging Face folder that is loaded like any other draft."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from trtspec.base.atomic import publish, remove, temporary
from trtspec.base.errors import TensorError
from trtspec.checkpoint.writer import SafetensorsFile, TensorEntry
from trtspec.models.hf_config import DOWNLOAD_AGAIN
from trtspec.models.source import Source
from trtspec.models.tensors import SINGLE, Tensor
from trtspec.models.tokenizer import TOKENIZER_FILES

_CHUNK = 16 << 20
_COPIED = (*TOKENIZER_FILES, "generation_config.json", "hf_quant_config.json")


def write_model(source: Source, folder: Path) -> None:
    """Writes a model of some layers of another (`of_layers`); weights are copied as they are.

    A folder that is there is complete, and stays.
    """
    if folder.is_dir():
        return
    made = temporary(folder)
    remove(made)
    made.mkdir(parents=True)
    (made / "config.json").write_text(json.dumps(source.config.content, indent=2) + "\n", encoding="utf-8")
    _copy_weights(source.tensors, made / SINGLE)
    for name in _COPIED:
        if (source.folder / name).is_file():
            shutil.copyfile(source.folder / name, made / name)
    publish(made, folder)


def _copy_weights(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Writes the tensors under their names, piece by piece."""
    entries = [TensorEntry(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()]
    with SafetensorsFile(file, entries, {"format": "pt"}) as out:
        for name, tensor in tensors.items():
            _copy(tensor, out, out.starts[name])


def _copy(tensor: Tensor, out: SafetensorsFile, position: int) -> None:
    with tensor.file.open("rb") as weights:
        weights.seek(tensor.start)
        end = position + tensor.end - tensor.start
        while position < end:
            piece = weights.read(min(end - position, _CHUNK))
            if not piece:
                problem = f"{tensor.name}: the file was cut off while it was read"
                raise TensorError(tensor.file, problem, DOWNLOAD_AGAIN)
            out.write(piece, position)
            position += len(piece)
