"""Medusa (Cai et al. 2024, arXiv 2401.10774): heads of which each predicts one of the next tokens.

All read the target's state before the last token, which the target itself has predicted. Head 0 predicts the
token after the last one, and head i the i-th after that. The draft is a chain of the likeliest token of each,
where the paper verifies a tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter

import torch
from torch import Tensor
from torch.nn import functional as F

from trtspec.serving.executors.torch.dependents.home import Home, SlotStates
from trtspec.serving.executors.torch.engine import TorchEngineConfig
from trtspec.serving.executors.torch.linear import Linear
from trtspec.serving.executors.torch.spans import Span
from trtspec.serving.executors.torch.weights import Form


class MedusaHeads:
    """Medusa's heads as a `StepModel`. The position in the draft selects the head."""

    def __init__(self, config: TorchEngineConfig, tensors: Mapping[str, Tensor], home: Home) -> None:
        assert config.draft is not None
        count, depth = config.draft["count"], config.draft["num_layers"]
        self._states = SlotStates(home, config.hidden_size, (home.config.num_layers,), itemgetter(0))
        self._blocks = [[_block(tensors, head, layer) for layer in range(depth)] for head in range(count)]
        self._lm_heads = [Linear(tensors[f"{head}.{depth}.weight"]) for head in range(count)]

    def forward(self, token_ids: list[int], spans: Sequence[Span], wanted: list[int]) -> Tensor:
        """Implements `StepModel.forward`. Each span is one row, and all rows have logits."""
        last = [Span(span.slot, span.prompt_len - 2, 1) for span in spans]
        states = self._states.read(last)
        logits: list[Tensor] = [states] * len(spans)
        heads = [span.start + 1 - span.prompt_len for span in spans]
        for head in set(heads):
            rows = [row for row, other in enumerate(heads) if other == head]
            for row, own in zip(rows, self._logits(head, states[rows]), strict=True):
                logits[row] = own
        return torch.stack(logits)

    def _logits(self, head: int, x: Tensor) -> Tensor:
        for block in self._blocks[head]:
            x = x + F.silu(block(x))
        return self._lm_heads[head](x)


def _block(tensors: Mapping[str, Tensor], head: int, layer: int) -> Linear:
    name = f"{head}.{layer}.linear"
    return Linear(tensors[f"{name}.weight"], tensors[f"{name}.bias"])


def forms(config: TorchEngineConfig) -> dict[str, Form]:
    """Returns the tensors that the heads must have, under the names of Medusa's own repository."""
    assert config.draft is not None
    hidden, dtype, depth = config.hidden_size, config.dtype, config.draft["num_layers"]
    result: dict[str, Form] = {}
    for head in range(config.draft["count"]):
        for layer in range(depth):
            result[f"{head}.{layer}.linear.weight"] = Form(dtype, (hidden, hidden))
            result[f"{head}.{layer}.linear.bias"] = Form(dtype, (hidden,))
        result[f"{head}.{depth}.weight"] = Form(dtype, (config.vocab_size, hidden))
    return result


load = MedusaHeads
