"""The embedding bias of one sequence, as tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Bias:
    """Adds a bias to the logits of some tokens, on the `device` of the logits."""

    def __init__(self, bias: Mapping[int, float], device: torch.device) -> None:
        self._token_ids = torch.tensor(list(bias), dtype=torch.int64, device=device)
        self._values = torch.tensor(list(bias.values()), dtype=torch.float32, device=device)

    def add(self, logits: Tensor) -> None:
        """Adds the bias to `logits`, float32 `[rows, vocab_size]`, in place."""
        logits[:, self._token_ids] += self._values
