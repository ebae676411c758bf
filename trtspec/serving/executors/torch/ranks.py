"""The ranks of a parallel engine, whose shares of the weights are joined for one device.

Shares are those of TensorRT-LLM's checkpoints (`tensorrt_llm/mapping.py`): rank
`pipeline * tp_size + tensor`, layers counted from zero on every pipeline rank and split as
`torch.tensor_split` does, q, k and v each split by heads before they are stacked.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trtspec.serving.executors.torch.engine import TorchEngineConfig

FC = ".fc.weight"
ROWS = (FC, ".gate.weight")
COLUMNS = (".dense.weight", ".proj.weight")
HEADS = ("attention.qkv.weight", "attention.qkv.bias")
VOCABULARY = ("lm_head.weight", "vocab_embedding.weight")


def place(config: TorchEngineConfig, name: str) -> tuple[int, str]:
    """Returns the pipeline rank that has a tensor of the whole model, and the tensor's name there."""
    if name.startswith("transformer.vocab_embedding"):
        return 0, name
    if not name.startswith("transformer.layers."):
        return config.pp_size - 1, name
    _, _, layer, rest = name.split(".", 3)
    for rank, layers in enumerate(torch.arange(config.num_layers).tensor_split(config.pp_size)):
        if int(layer) in layers:
            return rank, f"transformer.layers.{int(layer) - int(layers[0])}.{rest}"
    raise ValueError(name)


def joined(config: TorchEngineConfig, name: str, shares: Sequence[Tensor]) -> Tensor:
    """Returns a tensor of the whole model, from the shares of all tensor-parallel ranks.

    Rows and columns are the last two dimensions; experts have one before them.
    """
    if len(shares) == 1:
        return shares[0]
    if name.endswith(FC) and config.fused_gate:
        firsts, seconds = zip(*(share.chunk(2, -2) for share in shares), strict=True)
        return torch.cat([*firsts, *seconds], -2)
    if name.endswith(ROWS):
        return torch.cat(list(shares), -2)
    if name.endswith(COLUMNS):
        return torch.cat(list(shares), -1)
    if name.endswith(VOCABULARY) and shares[0].shape[0] < config.vocab_size:
        return torch.cat(list(shares))[: config.vocab_size]
    if name.endswith(HEADS):
        return _heads(config, shares)
    return shares[0]


def _heads(config: TorchEngineConfig, shares: Sequence[Tensor]) -> Tensor:
    """Returns the stacked q, k and v.

    With more ranks than heads of keys and values, neighbouring ranks have copies of the same head.
    """
    copies = max(len(shares) // config.num_kv_heads, 1)
    keys = max(config.num_kv_heads // len(shares), 1) * config.head_size
    queries = config.num_heads // len(shares) * config.head_size
    q, k, v = zip(*(torch.split(share, [queries, keys, keys]) for share in shares), strict=True)
    return torch.cat([*q, *k[::copies], *v[::copies]])
