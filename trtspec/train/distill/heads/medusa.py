"""Trains Medusa's heads: Medusa-1, whose target stays fixed (arXiv 2401.10774).

Head d predicts token t + 2 + d from the target's last state after token t. It starts with the target's own
logits: a residual block of zero weights, and the target's `lm_head`. The weights have the names of Medusa's
own repository.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trtspec.train.distill.examples import IGNORED
from trtspec.train.distill.model import Taught
from trtspec.train.distill.settings import DECAY


class ResidualBlock(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, states: Tensor) -> Tensor:
        return states + F.silu(self.linear(states))


class MedusaStudent(nn.ModuleList):
    """Heads of a target, with one residual block each."""

    def __init__(self, hidden: int, vocab_size: int, count: int) -> None:
        blocks = (
            nn.Sequential(ResidualBlock(hidden), nn.Linear(hidden, vocab_size, bias=False))
            for _ in range(count)
        )
        super().__init__(blocks)

    @torch.no_grad()
    def begin(self, embedding: Tensor, head: Tensor) -> None:
        """Starts from the target's output matrix."""
        for own in self:
            own[1].weight.copy_(head)  # type: ignore[index]

    def forward(self, taught: Taught, token_ids: Tensor, depth: int) -> Iterator[Tensor]:
        """Yields the logits of the first `depth` heads, `[texts, length, vocabulary]` each.

        Entry d at position t is for token t + 2 + d.
        """
        for own in list(self)[:depth]:
            yield own(taught.states[-1])

    def loss(self, taught: Taught, token_ids: Tensor, labels: Tensor, depth: int) -> Tensor:
        """Returns the cross entropy of the answers' tokens, in nats per token; each head counts `DECAY` of
        the one before."""
        total, weights = taught.logits.new_zeros(()), 0.0
        for done, logits in enumerate(self(taught, token_ids, depth)):
            wanted = labels[:, 2 + done :]
            own = logits[:, : -2 - done].float().flatten(0, 1)
            crossed = F.cross_entropy(own, wanted.flatten(), ignore_index=IGNORED, reduction="sum")
            total = total + DECAY**done * crossed / (wanted != IGNORED).sum().clamp(min=1)
            weights += DECAY**done
        return total / weights
