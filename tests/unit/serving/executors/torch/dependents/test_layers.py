"""Layers of the target as the draft propose what transformers does with the target's own keys and values."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel

from tests.fakes.engine_dir import tiny_llama, tiny_model, write_engine
from tests.unit.serving.executors.torch.dependents.test_heads import PROMPTS, K, rounds
from trtspec.backends.torch.builder import build_layers
from trtspec.base.errors import EngineError
from trtspec.serving.executor import Executor
from trtspec.serving.executors.torch.torch_executor import TorchExecutor, load_engines

LAYERS = (0, 2, 4)
BUILD = {"plugin_config": {"use_paged_context_fmha": True}, "gather_generation_logits": False}


def without(target: PreTrainedModel, layers: Sequence[int]) -> PreTrainedModel:
    """The target without its other layers."""
    part = copy.deepcopy(target)
    part.model.layers = torch.nn.ModuleList(part.model.layers[layer] for layer in layers)
    for place, layer in enumerate(part.model.layers):
        layer.self_attn.layer_idx = place
    return part


@torch.inference_mode()
def proposed(
    target: PreTrainedModel, layers: Sequence[int], text: Sequence[int], *, shares: bool
) -> list[int]:
    """What the layers say behind the text, after keys and values of the whole target or of their own."""
    cache: Any
    part, cache, known = without(target, layers), DynamicCache(), torch.tensor([list(text[:-1])])
    if shares:
        whole: Any = DynamicCache()
        target(known, past_key_values=whole, use_cache=True)
        for place, layer in enumerate(layers):
            cache.update(whole.layers[layer].keys, whole.layers[layer].values, place)
    else:
        part(known, past_key_values=cache, use_cache=True)
    said = [text[-1]]
    for _ in range(K):
        logits = part(torch.tensor([said[-1:]]), past_key_values=cache, use_cache=True).logits
        said.append(int(logits[0, -1].argmax()))
    return said[1:]


def pair_of(folder: Path, target: PreTrainedModel) -> Sequence[Executor]:
    engine = write_engine(folder / "target", target, **BUILD)
    build_layers(LAYERS, engine, folder / "draft")
    return load_engines([engine, folder / "draft"])


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral"])
def test_they_go_on_behind_the_targets_own_keys_and_values(tmp_path: Path, family: str) -> None:
    """Not behind their own: a layer's keys are of what all layers before it have made, left out or not."""
    window: dict[str, Any] = {"sliding_window": 9} if family == "mistral" else {}
    target = tiny_model(family, num_hidden_layers=5, **window)

    async def main() -> list[tuple[list[int], list[int]]]:
        pair = pair_of(tmp_path, target)
        found = await asyncio.gather(*(rounds(pair, prompt) for prompt in PROMPTS))
        for engine in reversed(pair):
            engine.shutdown()
        return [seen for first, *others in found for seen in others]

    seen = asyncio.run(main())
    ours = [draft for _, draft in seen]
    assert ours == [proposed(target, LAYERS, text, shares=True) for text, _ in seen]
    assert ours != [proposed(target, LAYERS, text, shares=False) for text, _ in seen]


def test_they_take_no_memory_of_their_own(tmp_path: Path) -> None:
    pair = pair_of(tmp_path, tiny_llama(num_hidden_layers=5))
    target, draft = (engine for engine in pair if isinstance(engine, TorchExecutor))
    assert target._home
    assert draft._runner
    assert draft._runner._model._layers == [target._home.model._layers[layer] for layer in LAYERS]  # type: ignore[attr-defined]
    assert draft._runner._cache is target._home.cache
    assert draft.kv_tokens is None
    alone = TorchExecutor(tmp_path / "target")
    assert alone.kv_tokens == target.kv_tokens
    for engine in (draft, target, alone):
        engine.shutdown()


@pytest.mark.parametrize("layers", [(), (0, 5), (2, 0), (1, 1)])
def test_layers_that_are_not_some_of_the_targets(tmp_path: Path, layers: tuple[int, ...]) -> None:
    engine = write_engine(tmp_path / "target", tiny_llama(num_hidden_layers=5), **BUILD)
    with pytest.raises(EngineError, match="has the layers 0 to 4, and a draft is to be of"):
        build_layers(layers, engine, tmp_path / "draft")
    assert not (tmp_path / "draft").exists()
