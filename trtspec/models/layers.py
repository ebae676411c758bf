"""Makes a draft of the target: of some of its layers, which needs no training and no download, or of a head.

Draft & Verify (Zhang et al. 2023, arXiv 2309.08168), LayerSkip (Elhoushi et al. 2024, arXiv 2404.16710) and
SWIFT (Xia et al. 2024, arXiv 2410.06916) draft with the target's layers too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from trtspec.base.errors import ModelError
from trtspec.models.download import is_headers_only
from trtspec.models.heads.head import HeadDescription
from trtspec.models.source import HfConfig, Source
from trtspec.recipe.schema import Draft, usual_count
from trtspec.serving.executors.torch.alike import Bytes, Read, alike

T = TypeVar("T")

_LAYER = re.compile(r"(.*\blayers\.)(\d+)(\..*)")
_BY_LAYER = ("layer_types",)
"""Keys of `config.json` with one value per layer."""


def spread(count: int, of: int) -> tuple[int, ...]:
    """Returns `count` of the layers, evenly from the first to the last; these two matter most."""
    if count == 1:
        return (0,)
    return tuple(round(place * (of - 1) / (count - 1)) for place in range(count))


def draft_of(source: Source, draft: Draft) -> Source:
    """Returns the draft made of the target's layers, or of as many layers as a build will choose.

    A model of its own is returned unchanged. Raises ModelError for layers that the target lacks.
    """
    written, of = draft.layers_of_target, source.num_hidden_layers
    if written is None:
        return source
    if not isinstance(written, str):
        return of_layers(source, written)
    count = draft.layer_search.count or usual_count(of)
    if count >= of:
        problem = f"has {of} layers, so a draft of {count} layers would leave none out"
        raise ModelError(source.folder, problem, "set a smaller layer_search.count, or use a draft model")
    return of_layers(source, spread(count, of))


def head_on(head: HeadDescription, target: Source) -> Source:
    """Returns the draft that a head is; it reads the target's states, so its sizes are the target's."""
    layer = head.layer or {"num_hidden_layers": 0}
    return replace(
        target,
        folder=head.folder,
        vocab_size=head.draft_vocab_size,
        num_hidden_layers=layer["num_hidden_layers"],
        num_attention_heads=layer.get("num_attention_heads", target.num_attention_heads),
        num_key_value_heads=layer.get("num_key_value_heads", target.num_key_value_heads),
        head_size=layer.get("head_dim", target.head_size),
        scheme=None,
        tensors=head.tensors,
    )


def of_layers(source: Source, layers: Sequence[int]) -> Source:
    """Returns the model of only these layers of `source`, in this order, with new numbers.

    Its tensors stay where they are on the disk. Raises ModelError for layers that the model lacks.
    """
    if wrong := [layer for layer in layers if not 0 <= layer < source.num_hidden_layers]:
        problem = f"has no layer {wrong[0]}: its layers are 0 to {source.num_hidden_layers - 1}"
        raise ModelError(source.folder, problem, "name others")
    content = source.config.content
    by_layer = {key: [content[key][layer] for layer in layers] for key in _BY_LAYER if content.get(key)}
    kept = renumbered(source.tensors, layers)
    tensors = {name: replace(tensor, name=name) for name, tensor in kept.items()}
    return replace(
        source,
        config=HfConfig(source.config.file, {**content, "num_hidden_layers": len(layers), **by_layer}),
        num_hidden_layers=len(layers),
        tensors=MappingProxyType(tensors),
        layers=tuple(layers),
    )


def renumbered(named: Mapping[str, T], layers: Sequence[int]) -> dict[str, T]:
    """Returns the entries of these layers under their new numbers, and the entries of no layer."""
    kept: dict[str, T] = {}
    for name, value in named.items():
        match = _LAYER.fullmatch(name)
        if match is None:
            kept[name] = value
        else:
            places = [new for new, old in enumerate(layers) if old == int(match[2])]
            kept |= {f"{match[1]}{new}{match[3]}": value for new in places}
    return kept


def num_common(target: Source, draft: Source) -> int:
    """Returns how many numbers of the draft's matrices the target has too; 0 where weights are not here.

    It looks at a few kilobytes of each.
    """
    if target.folder != draft.folder and any(is_headers_only(one.folder) for one in (target, draft)):
        return 0
    own, other = (_forms(draft), _reader(draft)), (_forms(target), _reader(target))
    common = alike(*own, *other, whole=False)
    return sum(draft.tensors[name].elements for name in common)


def _forms(source: Source) -> dict[str, tuple[str, tuple[int, ...]]]:
    tensors = source.tensors.items()
    return {name: (tensor.dtype, tensor.shape) for name, tensor in tensors if len(tensor.shape) > 1}


def _reader(source: Source) -> Read:
    @cache
    def read(name: str) -> Bytes:
        tensor = source.tensors[name]
        return np.memmap(tensor.file, np.uint8, "r", tensor.start, (tensor.end - tensor.start,))

    return read
