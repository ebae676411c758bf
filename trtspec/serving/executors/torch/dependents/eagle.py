"""EAGLE (Li et al. 2024, arXiv 2401.15077): a layer that continues the target's last states.

It computes the next state from a state and the next token. The target's own head computes the logits. Names
and order are those of EAGLE's repository (`eagle/model/cnets.py` at version 1), as vLLM reads them
(`vllm/model_executor/models/llama_eagle.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter

import torch
from torch import Tensor

from trtspec.serving.executors.torch.cache import CacheView
from trtspec.serving.executors.torch.dependents.head import AttachedHead, head_forms
from trtspec.serving.executors.torch.dependents.home import Home, SlotStates
from trtspec.serving.executors.torch.engine import TorchEngineConfig
from trtspec.serving.executors.torch.linear import Linear
from trtspec.serving.executors.torch.weights import Form


class EagleHead(AttachedHead):
    """An EAGLE head."""

    def __init__(self, config: TorchEngineConfig, tensors: Mapping[str, Tensor], home: Home) -> None:
        depths = (home.config.num_layers,)
        super().__init__(config, tensors, home, SlotStates(home, config.hidden_size, depths, itemgetter(0)))
        self._fc, self._home = Linear(tensors["fc.weight"], tensors.get("fc.bias")), home

    def _compute(
        self, embedded: Tensor, states: Tensor, rotation: Tensor, views: Sequence[CacheView]
    ) -> Tensor:
        x = self._fc(torch.cat([embedded, states], -1))
        for layer in self._layers:
            x = layer.forward(x, rotation, views)
        return x

    def _results(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self._home.model.logits(x), x


def forms(config: TorchEngineConfig) -> dict[str, Form]:
    """Returns the tensors that the head must have."""
    hidden, dtype = config.hidden_size, config.dtype
    assert config.draft is not None
    bias = {"fc.bias": Form(dtype, (hidden,))} if config.draft["fc_bias"] else {}
    return {"fc.weight": Form(dtype, (hidden, 2 * hidden)), **bias, **head_forms(config, hidden)}


load = EagleHead
