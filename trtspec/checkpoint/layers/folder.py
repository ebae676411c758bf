"""A draft of some of a target's own layers, as a Hugging Face folder that is loaded like any other draft."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from trtspec.base.atomic import publish, remove, temporary
from trtspec.checkpoint.reader import Reader
from trtspec.checkpoint.writer import SafetensorsFile, TensorEntry
from trtspec.models.model_file import has_file
from trtspec.models.source import SINGLE, Source, Tensor
from trtspec.models.tokenizer import copy_tokenizer

_CHUNK = 16 << 20
_COPIED = ("generation_config.json", "hf_quant_config.json")


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
    copy_tokenizer(source.folder, made)
    for name in _COPIED:
        if has_file(source.folder / name):
            shutil.copyfile(source.folder / name, made / name)
    publish(made, folder)


def _copy_weights(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Writes the tensors under their names, piece by piece."""
    entries = [TensorEntry(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()]
    with (
        Reader({tensor.file for tensor in tensors.values()}) as reader,
        SafetensorsFile(file, entries, {"format": "pt"}) as out,
    ):
        for name, tensor in tensors.items():
            size = tensor.end - tensor.start
            for at in range(0, size, _CHUNK):
                out.write(reader.read(tensor, at, min(_CHUNK, size - at)), out.starts[name] + at)
