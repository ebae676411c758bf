"""The weights that engines on a CPU share, for example with a draft made of some of its target's layers."""

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
from trtspec.serving.executors.torch.engine import TorchEngineConfig
from trtspec.serving.executors.torch.packed_weights import PackedWeights, packed
from trtspec.serving.executors.torch.weights import Rank, forms


class SharedWeights:
    """Holds once the weights that are equal to the byte in several engines, which are loaded one by one.

    It compares digests of the weights, which take a ninth of the time of packing. The last engine with a
    weight frees it.
    """

    def __init__(self) -> None:
        self._tensors: dict[bytes, Tensor] = {}
        self._packed: dict[bytes, PackedWeights] = {}

    def tensor(self, tensor: Tensor) -> Tensor:
        """Returns the first tensor that was equal."""
        return self._tensors.setdefault(_digest(tensor), tensor)

    def pack(self, weight: Tensor, bias: Tensor | None) -> PackedWeights:
        """Returns `packed(weight, bias)`, or its earlier result for equal weights."""
        key = _digest(weight) + (b"" if bias is None else _digest(bias))
        if key not in self._packed:
            self._packed[key] = packed(weight, bias)
        return self._packed[key]


def shared_bytes(folders: Sequence[Path], configs: Sequence[TorchEngineConfig]) -> int:
    """Returns the bytes of weights that a target and its draft on a CPU will share.

    Weights in several ranks or in float8 count as different. Raises `EngineLoadError`.
    """
    if len(folders) < 2 or any(config.fp8 or config.tp_size * config.pp_size > 1 for config in configs):
        return 0
    with ExitStack() as stack:
        ranks = [Rank(folder / "rank0.safetensors", torch.device("cpu"), stack) for folder in folders]
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
