"""Reads the headers of a head's tensors, and checks that they are the required ones."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from trtspec.base.errors import ModelError, TensorError
from trtspec.models.hf_config import DOWNLOAD_AGAIN, SAME_REVISION
from trtspec.models.source import DTYPES
from trtspec.models.tensors import INDEX, PICKLES, SINGLE, Tensor, read_header, read_tensors

MAPPING = {"d2t": "I64", "t2d": "BOOL"}
"""The tables of a head's own vocabulary, with their safetensors dtypes."""
_SAVE = "torch.load({0!r}, weights_only=True), {1!r}"
_UNUSED = re.compile(r"verifier_\w+\.weight|.*rotary_emb\.inv_freq")  # of the target; computed again


def read_weights(folder: Path, single: str = SINGLE) -> dict[str, Tensor]:
    """Reads the tensors of `single`, or of an index's shards; raises ModelError or TensorError."""
    if (folder / single).is_file():
        return read_header(folder / single)
    if (folder / INDEX).is_file():
        return read_tensors(folder)
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
    if pickles:
        problem = f"holds its weights as pickle ({pickles[0]}), which can run code when read"
        repair = f"in a sandbox: safetensors.torch.save_file({_SAVE.format(pickles[0], single)})"
        raise ModelError(folder, problem, repair)
    raise ModelError(folder, f"holds no {single}", DOWNLOAD_AGAIN)


def check_count(folder: Path, what: str, count: int, tensors: Mapping[str, Tensor]) -> None:
    """Raises ModelError if a head claims more parts than it has tensors: each part has at least one."""
    if count > len(tensors):
        problem = f"{what} is {count}, but there are only {len(tensors)} tensors"
        raise ModelError(folder / "config.json", problem, SAME_REVISION)


def check_shape(folder: Path, tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    """Returns the tensor of a name; raises TensorError if it is missing or has another shape."""
    tensor = tensors.get(name)
    if tensor is None:
        raise TensorError(folder, f"{name}: is missing", DOWNLOAD_AGAIN)
    if tensor.shape != shape:
        problem = f"{tensor.name}: has shape {list(tensor.shape)}, but config.json demands {list(shape)}"
        raise TensorError(tensor.file, problem, SAME_REVISION)
    return tensor


def check_shapes(
    folder: Path,
    tensors: Mapping[str, Tensor],
    shapes: Mapping[str, tuple[int, ...]],
    optional: Collection[str] = (),
    dtypes: Mapping[str, str] | None = None,
) -> None:
    """Raises TensorError unless the tensors are those of `shapes`; `optional` ones may be missing.

    They must be floats, except those of `dtypes`, which names the safetensors dtype of each.
    """
    for name, shape in shapes.items():
        if name not in tensors and name in optional:
            continue
        tensor = check_shape(folder, tensors, name, shape)
        allowed = [dtypes[name]] if dtypes and name in dtypes else list(DTYPES)
        if tensor.dtype not in allowed:
            problem = f"{tensor.name}: has dtype {tensor.dtype}, not {' or '.join(allowed)}"
            raise TensorError(tensor.file, problem, "use the unquantized head")
    if extra := sorted(name for name in tensors if name not in shapes and not _UNUSED.fullmatch(name)):
        problem = f"{tensors[extra[0]].name}: is no tensor of this head"
        raise TensorError(tensors[extra[0]].file, problem, SAME_REVISION)
