"""The weights that engines on a CPU have in common, as a draft has that is some of its target's layers."""

from __future__ import annotations

from hashlib import sha256

import torch
from torch import Tensor

from trtspec.serving.executors.torch.packed_weights import PackedWeights, packed


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


def _digest(tensor: Tensor) -> bytes:
    digest = sha256(f"{tensor.dtype} {list(tensor.shape)}".encode())
    digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
    return digest.digest()
