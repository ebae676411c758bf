"""Reads the headers of a head's tensors, and checks that they are the required ones."""

from __future__ import annotations

import re
from pathlib import Path

from trtspec.base.errors import ModelError, TensorError
from trtspec.models.heads.head import MAPPING, HeadDescription
from trtspec.models.hf_config import DOWNLOAD_AGAIN, SAME_REVISION
from trtspec.models.source import DTYPES
from trtspec.models.tensors import INDEX, PICKLES, SINGLE, Tensor, read_header, read_tensors

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


def check_tensors(head: HeadDescription) -> None:
    """Raises ModelError or TensorError unless a head's tensors are those that its description demands."""
    tensors, (key, count) = head.tensors, head.num_parts
    if count > len(tensors):
        problem = f"{key} is {count}, but there are only {len(tensors)} tensors"
        raise ModelError(head.folder / "config.json", problem, SAME_REVISION)
    shapes, further = head.shapes(), head.further()
    missing = [name for name in shapes if name not in tensors and name not in head.optional]
    missing += [f"{start}*" for start in further or () if not any(name.startswith(start) for name in tensors)]
    if missing:
        raise TensorError(head.folder, f"{missing[0]}: is missing", DOWNLOAD_AGAIN)
    for name, shape in shapes.items():
        if (tensor := tensors.get(name)) is None:
            continue
        if tensor.shape != shape:
            problem = f"{tensor.name}: has shape {list(tensor.shape)}, but config.json demands {list(shape)}"
            raise TensorError(tensor.file, problem, SAME_REVISION)
        dtypes = [MAPPING[name]] if name in MAPPING else list(DTYPES)
        if further is None and tensor.dtype not in dtypes:
            problem = f"{tensor.name}: has dtype {tensor.dtype}, not {' or '.join(dtypes)}"
            raise TensorError(tensor.file, problem, "use the unquantized head")
    extra = sorted(name for name in tensors if name not in shapes and not _UNUSED.fullmatch(name))
    if extra and further is None:
        problem = f"{tensors[extra[0]].name}: is no tensor of this head"
        raise TensorError(tensors[extra[0]].file, problem, SAME_REVISION)
