"""Mixtral: `MixtralForCausalLM`, TensorRT-LLM's LLaMA class with experts (`models/llama/config.py`)."""

from __future__ import annotations

from functools import partial
from typing import Any

from trtspec.models.families import decoder, experts, llama
from trtspec.models.families.experts import ExpertNames
from trtspec.models.families.family import ModelFamily
from trtspec.models.families.window import of_all_layers
from trtspec.models.source import Source

NAMES = ExpertNames("block_sparse_moe", gate="w1", up="w3", down="w2")

window = partial(of_all_layers, default=None)


def check(source: Source) -> None:
    decoder.check(source)
    window(source)


def config(source: Source) -> dict[str, Any]:
    moe = experts.config(source, renormalized=True)
    return {**llama.config(source), **moe, "sliding_window": window(source)}


FAMILY = ModelFamily(
    name="mixtral",
    check=check,
    weights=partial(decoder.weights, mlp=NAMES.weights),
    config=config,
    ignored=decoder.IGNORED,
    keys=(*llama.KEYS, experts.ACTIVATION),
    window=window,
    experts=True,
    fused_gate=True,
)
