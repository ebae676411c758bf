"""Computes with the frozen target the states that a head learns from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trtspec.base.errors import ModelError
from trtspec.models.source import Source
from trtspec.train.distill.model import load


@dataclass(frozen=True, slots=True)
class Taught:
    """The target's outputs for token ids `[texts, length]`."""

    states: tuple[Tensor, ...]
    """The states after the embedding and after each layer, `[texts, length, hidden]`. The last one is after
    the last norm.
    """
    logits: Tensor
    """The logits of each next token, `[texts, length, vocabulary]`."""


class Teacher:
    """A target, in float32 on a CPU and in its own dtype on a GPU; raises ModelError for a quantized one."""

    def __init__(self, source: Source) -> None:
        if source.scheme is not None:
            problem = f"is quantized by {source.scheme.method}, but a head learns from unquantized weights"
            raise ModelError(source.folder, problem, "name the unquantized model as the target")
        on_gpu = torch.cuda.is_available()
        dtype = getattr(torch, source.dtype) if on_gpu else torch.float32
        self._model: Any = load(source, dtype).requires_grad_(False)
        self._model.train(False).to("cuda" if on_gpu else "cpu")

    @property
    def device(self) -> torch.device:
        device: torch.device = self._model.device
        return device

    @property
    def embedding(self) -> Tensor:
        """Its token embeddings, `[vocabulary, hidden]`, on the CPU in float32."""
        return _plain(self._model.get_input_embeddings())

    @property
    def head(self) -> Tensor:
        """Its output matrix, which turns the last states into logits, `[vocabulary, hidden]`, on the CPU in
        float32."""
        return _plain(self._model.get_output_embeddings())

    @torch.no_grad()
    def teach(self, token_ids: Tensor, attention_mask: Tensor | None = None) -> Taught:
        """Computes texts; shorter ones are padded after their ends."""
        said = self._model(
            token_ids, attention_mask=attention_mask, output_hidden_states=True, use_cache=False
        )
        return Taught(tuple(state.float() for state in said.hidden_states), said.logits.float())


def _plain(module: Any) -> Tensor:
    weight: Tensor = module.weight
    return weight.detach().to("cpu", torch.float32)
