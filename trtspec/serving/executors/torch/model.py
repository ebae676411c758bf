"""Llama (Touvron et al. 2023, arXiv 2302.13971) over a flat batch: the new rows of many sequences."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from trtspec.serving.executors.torch.cache import Cache, Span
from trtspec.serving.executors.torch.engine import EngineConfig
from trtspec.serving.executors.torch.linear import Linear, NormedLinear
from trtspec.serving.executors.torch.rope import pair_up, rotate, rotations
from trtspec.serving.executors.torch.window import Window

Tensors = dict[str, Tensor]


class Llama:
    """Weights ready to run. The cache is written as rows pass through."""

    def __init__(self, config: EngineConfig, tensors: Tensors, cache: Cache, device: torch.device) -> None:
        self._device, self._cache = device, cache
        self._rotations = rotations(
            config.head_size, config.rotary_base, config.rotary_scaling, config.limits.max_seq_len, device
        )
        self._embedding = tensors["transformer.vocab_embedding.weight"]
        self._layers = [Layer(config, tensors, index) for index in range(config.num_layers)]
        self._head = NormedLinear(
            tensors["transformer.ln_f.weight"], tensors["lm_head.weight"], config.norm_epsilon
        )

    def forward(self, token_ids: list[int], spans: Sequence[Span], wanted: list[int]) -> Tensor:
        """Logits `[len(wanted), vocab_size]` after the rows `wanted`, which are in order.

        `token_ids` are the rows of all spans, in their order.
        """
        windows = self._cache.windows(spans)
        rotation = torch.cat([self._rotations[span.start : span.start + span.rows] for span in spans])
        x = F.embedding(torch.tensor(token_ids, device=self._device), self._embedding)
        for layer in self._layers:
            x = layer.forward(x, rotation, windows)
        if not wanted:
            return x.new_empty(0, self._embedding.shape[0])
        if len(wanted) < len(token_ids):
            x = x[torch.tensor(wanted, device=self._device)]
        return self._head(x)


class Layer:
    """One decoder layer."""

    def __init__(self, config: EngineConfig, tensors: Tensors, index: int) -> None:
        def tensor(name: str) -> Tensor:
            return tensors[f"transformer.layers.{index}.{name}.weight"]

        self._index, self._head_size, self._heads = index, config.head_size, config.num_heads
        self._turned = config.num_heads + config.num_kv_heads
        qkv, border = tensor("attention.qkv"), self._turned * config.head_size
        qkv = torch.cat([pair_up(qkv[:border], self._turned), qkv[border:]])
        self._qkv = NormedLinear(tensor("input_layernorm"), qkv, config.norm_epsilon)
        self._dense = Linear(tensor("attention.dense"))
        fc_gate = torch.cat([tensor("mlp.fc"), tensor("mlp.gate")])
        self._fc_gate = NormedLinear(tensor("post_layernorm"), fc_gate, config.norm_epsilon)
        self._proj = Linear(tensor("mlp.proj"))

    def forward(self, x: Tensor, rotation: Tensor, windows: Sequence[Window]) -> Tensor:
        x = self._attention(x, rotation, windows).add_(x)
        return self._mlp(x).add_(x)

    def _attention(self, x: Tensor, rotation: Tensor, windows: Sequence[Window]) -> Tensor:
        heads = self._qkv(x).view(x.shape[0], -1, self._head_size)
        rotate(heads[:, : self._turned], rotation)
        if len(windows) == 1:
            return self._dense(self._mix(windows[0], heads))
        parts = torch.split(heads, [window.rows for window in windows])
        return self._dense(torch.cat([self._mix(*pair) for pair in zip(windows, parts, strict=True)]))

    def _mix(self, window: Window, heads: Tensor) -> Tensor:
        window.write(self._index, heads[:, self._heads :])
        return window.attend(self._index, heads[:, : self._heads])

    def _mlp(self, x: Tensor) -> Tensor:
        fc, gate = self._fc_gate(x).chunk(2, -1)
        return self._proj(F.silu(fc).mul_(gate))
