"""Runs EAGLE's heads, which are decoder layers with their own keys and values beside the target's.

The head computes its row at position p from the state at p and the embedding of the token at p + 1. The row's
logits are those of the token at p + 2 (Li et al. 2024, arXiv 2401.15077). Rows of the prompt read the
target's states. Rows of a draft read the state of the row before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from trtspec.serving.executors.torch.cache import Cache, CacheView
from trtspec.serving.executors.torch.dependents.home import Home, SlotStates
from trtspec.serving.executors.torch.engine import TorchEngineConfig
from trtspec.serving.executors.torch.linear import packed
from trtspec.serving.executors.torch.model import DecoderLayer, rotations
from trtspec.serving.executors.torch.spans import Span
from trtspec.serving.executors.torch.weights import Form, layer_forms

EMBEDDING = "embed_tokens.weight"


class AttachedHead(ABC):
    """A head that computes one draft token in each step; it is a `StepModel`."""

    def __init__(
        self, config: TorchEngineConfig, tensors: Mapping[str, Tensor], home: Home, states: SlotStates
    ) -> None:
        self._device = home.model.embedding.device
        self._states, self._cache = states, Cache(config, self._device)
        home.cache.beside.append(self._cache)
        size, base, scaling = config.head_size, config.rotary_base, config.rotary_scaling
        self._rotations = rotations(size, base, scaling, config.limits.max_seq_len, self._device)
        own = tensors.get(EMBEDDING)
        is_targets = own is None or torch.equal(own, home.model.embedding)
        self._embedding = home.model.embedding if own is None or is_targets else own
        self._layers = [
            DecoderLayer(config, dict(tensors), index, packed) for index in range(config.num_layers)
        ]

    def forward(self, token_ids: list[int], spans: Sequence[Span], wanted: list[int]) -> Tensor:
        """Implements `StepModel.forward`. The row of a span at position p is the head's row at p - 1."""
        rows = [Span(span.slot, span.start - 1, span.rows) for span in spans]
        views = self._cache.views(rows)
        rotation = torch.cat([self._rotations[span.start : span.start + span.rows] for span in rows])
        embedded = F.embedding(torch.tensor(token_ids, device=self._device), self._embedding)
        x = self._compute(embedded, self._states.read(rows), rotation, views)[wanted]
        if not wanted:
            return x.new_empty(0, self._embedding.shape[0])
        logits, states = self._results(x)
        at = [Span(span.slot, span.start + row, 1) for span in spans for row in range(span.rows)]
        self._states.write(states, [at[row] for row in wanted])
        return logits

    @abstractmethod
    def _compute(
        self, embedded: Tensor, states: Tensor, rotation: Tensor, views: Sequence[CacheView]
    ) -> Tensor:
        """Returns the output of the last layer for embeddings and states, all `[rows, hidden_size]`."""

    @abstractmethod
    def _results(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the logits `[rows, vocab_size]` of rows, and the states that the next rows read."""


def head_forms(config: TorchEngineConfig, width: int) -> dict[str, Form]:
    """Returns the tensors of both kinds of heads. The first layer's attention reads vectors of `width`."""
    forms = layer_forms(config)
    first = "transformer.layers.0"
    del forms[f"{first}.input_layernorm.weight"]
    qkv = forms[f"{first}.attention.qkv.weight"]
    forms[f"{first}.attention.qkv.weight"] = Form(qkv.dtype, (qkv.shape[0], width))
    assert config.draft is not None
    if config.draft["own_embedding"]:
        forms[EMBEDDING] = Form(config.dtype, (config.vocab_size, config.hidden_size))
    return forms
