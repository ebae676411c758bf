"""Finds the multi-token prediction layers of a model in its files.

DeepSeek-V3 (arXiv 2412.19437, section 2.2) is trained with them: each predicts one more token from the states
of the layers before. Servers draft with them. Their weights are in the model's own folder: after its last
layer, or under a name of their own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trtspec.models.source import Source

_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers")
"""The keys of `config.json` with their number, by family (vLLM, `SpeculativeConfig.hf_config_override`)."""
_SECTION = "mtp_config"  # Inkling's key
_OWN = re.compile(r"(?:^|\.)(?:mtp|nextn)(?:_\w+)?\.(?:layers\.)?(\d+)?")
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class MtpLayers:
    """The layers for multi-token prediction of one model."""

    count: int
    is_said: bool
    """True if `config.json` has their number; else their weights tell it."""
    size: int
    """The bytes of their weights; 0 if the folder lacks them."""


def mtp_layers(source: Source) -> MtpLayers | None:
    """Returns the layers; None for a model without them in its config and its weights."""
    size, numbers = 0, set[int]()
    for name, tensor in source.tensors.items():
        own, layer = _OWN.search(name), _LAYER.search(name)
        if own:
            numbers.add(int(own[1] or 0))
        elif layer and int(layer[1]) >= source.num_hidden_layers:
            numbers.add(int(layer[1]) - source.num_hidden_layers)
        else:
            continue
        size += tensor.end - tensor.start
    said = _said(source)
    count = len(numbers) if said is None else said
    return MtpLayers(count, said is not None, size) if count else None


def _said(source: Source) -> int | None:
    for section in (source.config, source.config.section(_SECTION)):
        for key in _KEYS:
            if section.content.get(key) is not None:
                return section.get(key, int)
    return None
