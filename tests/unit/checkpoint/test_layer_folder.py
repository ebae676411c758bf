"""A draft of some of a target's layers, against transformers' own model with the others taken out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from trtspec.base.errors import ModelError
from trtspec.checkpoint.layers.chosen import write_model
from trtspec.models.layers import of_layers, spread
from trtspec.models.source import read_source


@pytest.mark.parametrize("tied", [False, True])
def test_the_logits_are_those_of_the_model_without_the_other_layers(
    tmp_path: Path, llama_folder: Callable[..., Path], tied: bool
) -> None:
    folder = llama_folder("target", num_hidden_layers=5, tie_word_embeddings=tied, shard="20KB")
    write_model(of_layers(read_source(folder), (0, 3, 4)), tmp_path / "draft")
    model, draft = (
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        for path in (folder, tmp_path / "draft")
    )
    kept = [model.model.layers[index] for index in (0, 3, 4)]
    model.model.layers = torch.nn.ModuleList(kept)
    tokens = torch.arange(3, 40)[None]
    with torch.inference_mode():
        assert torch.equal(draft(tokens, use_cache=False).logits, model(tokens, use_cache=False).logits)
    assert AutoTokenizer.from_pretrained(tmp_path / "draft")("ab").input_ids
    assert read_source(tmp_path / "draft").num_hidden_layers == 3


def test_layers_that_are_not_there_are_refused(llama_folder: Callable[..., Path]) -> None:
    with pytest.raises(ModelError, match="has no layer 2: its layers are 0 to 1"):
        of_layers(read_source(llama_folder()), (0, 2))


@pytest.mark.parametrize(
    ("count", "of", "layers"), [(1, 8, (0,)), (2, 8, (0, 7)), (4, 8, (0, 2, 5, 7)), (8, 8, tuple(range(8)))]
)
def test_layers_are_spread(count: int, of: int, layers: tuple[int, ...]) -> None:
    assert spread(count, of) == layers
