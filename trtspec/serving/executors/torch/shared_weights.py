"""The weights that engines on a CPU have in common, as a draft has that is some of its target's layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

from trtspec.serving.executors.torch.alike import Bytes, alike
from trtspec.serving.executors.torch.device import CPU
from trtspec.serving.executors.torch.engine import TorchEngineConfig
from trtspec.serving.executors.torch.packed_weights import PackedWeights, packed
from trtspec.serving.executors.torch.weights import Rank, forms


class SharedWeights:
    """Holds once what engines that are loaded one after another have alike, to the byte.

    It goes by a digest of what is packed, which takes a ninth of the time of packing. Engines keep what they
    have of it, so it is freed with the last of them.
    """

    def __init__(self) -> None:
        self._tensors: dict[bytes, Tensor] = {}
        self._packed: dict[bytes, PackedWeights] = {}

    def tensor(self, tensor: Tensor) -> Tensor:
        """Returns the first tensor that was the same."""
        return self._tensors.setdefault(_digest(tensor), tensor)

    def pack(self, weight: Tensor, bias: Tensor | None) -> PackedWeights:
        """Returns `packed(weight, bias)`, or what the same gave before."""
        key = _digest(weight) + (b"" if bias is None else _digest(bias))
        if key not in self._packed:
            self._packed[key] = packed(weight, bias)
        return self._packed[key]


def shared_bytes(folders: Sequence[Path], configs: Sequence[TorchEngineConfig]) -> int:
    """Returns the bytes of weights that a target and its draft on a CPU will hold once.

    What is in several ranks or in float8 counts as different. Raises `EngineLoadError`.
    """
    if len(folders) < 2 or any(config.fp8 or config.tp_size * config.pp_size > 1 for config in configs):
        return 0
    with ExitStack() as stack:
        ranks = [Rank(folder / "rank0.safetensors", torch.device(CPU), stack) for folder in folders]
        target, draft = (
            {name: form for name, form in forms(config).items() if len(form.shape) > 1} for config in configs
        )

        def read(number: int, name: str) -> Bytes:
            content: Bytes = ranks[number].read(name).view(torch.uint8).numpy().reshape(-1)
            return content

        common = alike(draft, partial(read, 1), target, partial(read, 0), whole=True)
    return sum(math.prod(draft[name].shape) * draft[name].dtype.itemsize for name in common)


def _digest(tensor: Tensor) -> bytes:
    digest = sha256(f"{tensor.dtype} {list(tensor.shape)}".encode())
    digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
    return digest.digest()
