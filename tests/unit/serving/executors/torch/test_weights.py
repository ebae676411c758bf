"""Parallel checkpoints, as NVIDIA's exporter writes them, run as one model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.fakes.engine_dir import (
    checkpoint_tensors,
    pretrained_config,
    tiny_model,
    write_directory,
)
from tests.fakes.modelopt import export
from tests.support.families import FAMILIES, case
from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executors.torch.engine import read_config
from trtspec.serving.executors.torch.weights import place, read_tensors

CPU = torch.device("cpu")
SIZES: dict[str, dict[str, Any]] = {
    "two ranks": {},
    "heads of keys copied": {
        "num_attention_heads": 8, "head_dim": 8, "num_key_value_heads": 2, "hidden_size": 64,
    },
    "vocabulary padded": {"vocab_size": 95},
}  # fmt: skip


@pytest.fixture
def exported(tmp_path: Path) -> Callable[..., Path]:
    """An engine with the exporter's ranks and mapping."""

    def make(family: str, tensor: int, pipeline: int, **sizes: Any) -> Path:
        model = tiny_model(family, dtype=torch.bfloat16, num_hidden_layers=4, **sizes)
        save_file(checkpoint_tensors(model), tmp_path / "whole.safetensors")
        export(model, torch.bfloat16, tmp_path / "export", tensor, pipeline)
        theirs = json.loads((tmp_path / "export/config.json").read_text())
        keys = ("mapping", "use_parallel_embedding", "embedding_sharding_dim")
        pretrained = pretrained_config(model) | {key: theirs[key] for key in keys}
        engine = write_directory(tmp_path / "engine", pretrained, {})
        for file in (tmp_path / "export").glob("rank*.safetensors"):
            shutil.copy(file, engine)
        return engine

    return make


CASES = [(sizes, *ranks) for sizes in SIZES for ranks in ((1, 2), (2, 1), (2, 2))] + [
    ("heads of keys copied", 4, 1),
    ("heads of keys copied", 8, 2),
]


@pytest.mark.parametrize(
    ("family", "sizes", "tensor", "pipeline"),
    [case(family, *rest, often=rest == ("two ranks", 2, 2)) for family in FAMILIES for rest in CASES],
)
def test_the_shares_make_the_model(
    exported: Callable[..., Path], family: str, tensor: int, pipeline: int, sizes: str
) -> None:
    engine = exported(family, tensor, pipeline, **SIZES[sizes])
    whole = load_file(engine.parent / "whole.safetensors")
    found = read_tensors(engine, read_config(engine), CPU)
    assert found.keys() == whole.keys()
    for name in whole:
        assert torch.equal(found[name], whole[name]), name


def test_the_first_pipeline_ranks_have_the_layers_that_are_left_over(exported: Callable[..., Path]) -> None:
    engine = exported("llama", 1, 2)
    document = json.loads((engine / "config.json").read_text())
    document["pretrained_config"] |= {"num_hidden_layers": 5}
    (engine / "config.json").write_text(json.dumps(document))
    config = read_config(engine)
    layers = [place(config, f"transformer.layers.{index}.mlp.fc.weight") for index in range(5)]
    assert [(rank, name.split(".")[2]) for rank, name in layers] == [
        (0, "0"), (0, "1"), (0, "2"), (1, "0"), (1, "1"),
    ]  # fmt: skip


def test_shares_of_different_sizes(exported: Callable[..., Path]) -> None:
    engine = exported("llama", 2, 1)
    tensors = load_file(engine / "rank1.safetensors")
    tensors["transformer.layers.2.mlp.proj.weight"] = torch.zeros(40, 8, dtype=torch.bfloat16)
    save_file(tensors, engine / "rank1.safetensors")
    with pytest.raises(EngineLoadError, match=r"layers\.2\.mlp\.proj\.weight do not fit together"):
        read_tensors(engine, read_config(engine), CPU)


def test_a_rank_that_is_not_there(exported: Callable[..., Path]) -> None:
    engine = exported("llama", 2, 2)
    (engine / "rank3.safetensors").unlink()
    with pytest.raises(EngineLoadError, match=r"rank3\.safetensors: no such file"):
        read_tensors(engine, read_config(engine), CPU)
