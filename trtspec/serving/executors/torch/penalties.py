"""The embedding bias of one sequence, and its penalties on tokens that it already has, as tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from trtspec.serving.executor import SamplingConfig


class Bias:
    """Adds a bias to the logits of some tokens, on the `device` of the logits."""

    def __init__(self, bias: Mapping[int, float], device: torch.device) -> None:
        self._token_ids = torch.tensor(list(bias), dtype=torch.int64, device=device)
        self._values = torch.tensor(list(bias.values()), dtype=torch.float32, device=device)

    def add(self, logits: Tensor) -> None:
        """Adds the bias to `logits`, float32 `[rows, vocab_size]`, in place."""
        logits[:, self._token_ids] += self._values


class Penalties:
    """The penalties for repetition, presence and frequency, as in TensorRT-LLM, by the first `read` tokens.

    Each token of the sequence is counted once, on the `device` of the logits. Only logits of its tokens are
    changed, since a vocabulary may be a hundred times as large.
    """

    def __init__(self, sampling: SamplingConfig, vocab_size: int, device: torch.device) -> None:
        self._repetition = sampling.repetition_penalty or 1.0
        self._presence, self._frequency = sampling.presence_penalty or 0.0, sampling.frequency_penalty or 0.0
        self.read = 0
        self._counts = torch.zeros(vocab_size, device=device)
        self._seen = torch.empty(0, dtype=torch.int64, device=device)

    def add(self, token_ids: list[int]) -> None:
        """Counts the next tokens of the sequence."""
        self.read += len(token_ids)
        new = self._tensor(token_ids)
        # A token that is twice among the new ones is in `_seen` twice, which does no harm.
        self._seen = torch.cat([self._seen, new[self._counts[new] == 0]])
        self._counts.index_add_(0, new, self._counts.new_ones(len(token_ids)))

    def apply(self, logits: Tensor, draft: list[int]) -> None:
        """Changes `logits`, float32 `[len(draft) + 1, vocab_size]`, in place; row j follows `draft[:j]`.

        The draft, which may be rejected, counts only in its rows. Forbidden logits, which are -inf, stay so.
        """
        seen = torch.cat([self._seen, self._tensor(draft)]) if draft else self._seen
        counts = self._counts[seen].repeat(len(draft) + 1, 1)
        for row, token_id in enumerate(draft, 1):
            counts[row:] += seen == token_id
        values, is_counted = logits.index_select(1, seen), counts > 0
        is_forbidden = values.isneginf()
        if self._repetition != 1:
            punished = torch.where(values < 0, values * self._repetition, values / self._repetition)
            values = torch.where(is_counted, punished, values)
        values -= counts.mul_(self._frequency).add_(is_counted, alpha=self._presence)
        # An overflow of a penalty would make them NaN, which argmax prefers to any number.
        values.masked_fill_(is_forbidden, float("-inf"))
        logits.index_copy_(1, seen, values)

    def _tensor(self, token_ids: list[int]) -> Tensor:
        return torch.tensor(token_ids, dtype=torch.int64, device=self._counts.device)
