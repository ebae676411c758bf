"""Finds the tensors of a model folder, from the headers of its safetensors files alone.

The format (https://huggingface.co/docs/safetensors): eight bytes of header length, little endian; a JSON
object of `name: {dtype, shape, data_offsets}`; the data. Every claim of a header is checked against the
file's size, so that an incomplete download is found before an hour of conversion.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from trtspec.base.errors import ModelError, TensorError
from trtspec.models.hf_config import DOWNLOAD_AGAIN, UNPICKLE, read_json, refuse_foreign
from trtspec.models.model_file import has_file, open_file

ITEM_SIZE = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("BF16", "F16", "I16", "U16"), 2),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "I8", "U8", "BOOL"), 1),
}
MAX_HEADER = 100_000_000  # the limit of the safetensors library
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a safetensors file."""

    name: str
    file: Path
    dtype: str
    """The safetensors name."""
    shape: tuple[int, ...]
    start: int
    """The first byte, from the beginning of the file."""
    end: int
    """The byte after the last one, from the beginning of the file."""

    @property
    def elements(self) -> int:
        return prod(self.shape)

    def read(self) -> bytes:
        """The data, little endian; for small tensors. Raises TensorError if the file was cut off."""
        with open_file(self.file) as stream:
            stream.seek(self.start)
            data = stream.read(self.end - self.start)
        if len(data) < self.end - self.start:
            raise TensorError(
                self.file, f"{self.name}: the file was cut off while it was read", DOWNLOAD_AGAIN
            )
        return data


def read_tensors(folder: Path, single: str = SINGLE, repair: str = UNPICKLE) -> dict[str, Tensor]:
    """Every tensor of a model folder by name, from the file `single` or the shards that its index names.

    Raises ModelError or TensorError. `repair` is that of a pickle (`refuse_foreign`).
    """
    index = folder / INDEX
    if has_file(folder / single):
        return read_header(folder / single)
    if has_file(index):
        return _read_shards(folder, index)
    refuse_foreign(folder, (path.name for path in folder.iterdir()), folder, repair)
    raise ModelError(folder, f"holds no {single} and no {INDEX}", DOWNLOAD_AGAIN)


def read_header(file: Path) -> dict[str, Tensor]:
    """The tensors of one safetensors file, in the order of their data; raises TensorError."""
    with open_file(file) as stream:
        size = os.fstat(stream.fileno()).st_size
        prefix = stream.read(8)
        if prefix == b"version ":
            raise TensorError(
                file, "is a Git LFS pointer, not the weights", f"git lfs pull --include {file.name}"
            )
        length = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or length > min(MAX_HEADER, size - 8):
            problem = (
                f"is truncated or not safetensors: it has {size} bytes, but its header alone claims {length}"
            )
            raise TensorError(file, problem, DOWNLOAD_AGAIN)
        raw = stream.read(length)
    try:
        header = json.loads(raw, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise TensorError(file, f"has a header that is not JSON: {error}", DOWNLOAD_AGAIN) from error
    if not isinstance(header, dict):
        raise TensorError(file, "has a header that is not a JSON object", DOWNLOAD_AGAIN)
    header.pop("__metadata__", None)
    tensors = sorted(
        (_tensor(file, name, entry, 8 + length) for name, entry in header.items()), key=_position
    )
    _check_layout(file, tensors, 8 + length, size)
    return {tensor.name: tensor for tensor in tensors}


def _position(tensor: Tensor) -> tuple[int, int]:
    return tensor.start, tensor.end


def _tensor(file: Path, name: str, entry: Any, base: int) -> Tensor:
    """The tensor of a header entry; raises TensorError unless its dtype, shape and offsets agree."""
    try:
        dtype, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise TensorError(
            file, f"{name}: a header entry without dtype, shape or offsets", DOWNLOAD_AGAIN
        ) from error
    numbers = [*shape, start, end] if isinstance(shape, list) else [None]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise TensorError(file, f"{name}: shape {shape} at {start}..{end} is not possible", DOWNLOAD_AGAIN)
    if not isinstance(dtype, str) or dtype not in ITEM_SIZE:
        raise TensorError(file, f"{name}: dtype {dtype} is not one that trtspec knows")
    if end - start != prod(shape) * ITEM_SIZE[dtype]:
        claim = f"{dtype} {shape} takes {prod(shape) * ITEM_SIZE[dtype]} bytes"
        raise TensorError(file, f"{name}: {claim}, but the header gives it {end - start}", DOWNLOAD_AGAIN)
    return Tensor(name, file, dtype, tuple(shape), base + start, base + end)


def _check_layout(file: Path, tensors: list[Tensor], base: int, size: int) -> None:
    """Raises TensorError unless the data follows the header without holes and ends where the file ends."""
    end = base
    for tensor in tensors:
        if tensor.start != end:
            raise TensorError(
                file, f"{tensor.name}: its data overlaps another's or leaves a hole", DOWNLOAD_AGAIN
            )
        end = tensor.end
        if end > size:
            problem = f"{tensor.name}: is cut off: its data ends at byte {end}, but the file has {size}"
            raise TensorError(file, problem, DOWNLOAD_AGAIN)
    if end != size:
        raise TensorError(file, f"has {size - end} bytes after its last tensor", DOWNLOAD_AGAIN)


def read_index(index: Path) -> dict[str, str]:
    """The file name of each tensor, from an index; raises ModelError for one outside of its folder."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise ModelError(index, "has no weight_map from tensor names to files", DOWNLOAD_AGAIN)
    for shard in weight_map.values():
        if Path(shard).name != shard:
            raise ModelError(index, f"names a shard outside of its folder: {shard}")
    return weight_map


def _read_shards(folder: Path, index: Path) -> dict[str, Tensor]:
    weight_map = read_index(index)
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(weight_map.values())):
        if not has_file(folder / shard):
            raise ModelError(folder / shard, "the index names this shard, but it is missing", DOWNLOAD_AGAIN)
        for name, tensor in read_header(folder / shard).items():
            if name in tensors:
                raise TensorError(
                    folder / shard, f"{name}: is also in {tensors[name].file.name}", DOWNLOAD_AGAIN
                )
            tensors[name] = tensor
    for name, shard in weight_map.items():
        if name not in tensors or tensors[name].file.name != shard:
            raise TensorError(
                folder / shard, f"{name}: is missing here, although the index names this file", DOWNLOAD_AGAIN
            )
    return tensors


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name occurs twice")
    return result
