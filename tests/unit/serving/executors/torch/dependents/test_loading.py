"""What an engine of a draft in its target must be, and what it takes of the memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.fakes.bindings import change_config
from tests.fakes.drafting import random_head, tiny_target
from tests.unit.serving.executors.torch.dependents.test_heads import engines
from trtspec.backends.torch.builder import build_head
from trtspec.base.errors import EngineError, TensorError
from trtspec.models.heads.reading import read_head
from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executors.torch import device
from trtspec.serving.executors.torch.engine import read_config
from trtspec.serving.executors.torch.torch_executor import TorchExecutor, load_engines


@pytest.mark.parametrize(
    ("name", "numbers"), [("speculators", 16 + 2 * 8), ("eagle", 16 + 2 * 8), ("medusa", 16)]
)
def test_the_cache_has_room_for_states_and_the_heads_own(
    tmp_path: Path, name: str, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each token a state of 16 numbers, and a layer's keys and values of 2 heads of 4."""
    folders = engines(tmp_path, tiny_target(), random_head(tmp_path / "head", name))
    monkeypatch.setattr(device, "_free", lambda device: 10**6)
    configs = [read_config(folder) for folder in folders]
    assert device._need(configs[1]).bytes_per_token == 4 * numbers
    tensors = load_file(folders[1] / "rank0.safetensors").values()
    assert device._weights(configs[1]) == sum(tensor.numel() * 4 for tensor in tensors)
    pair = load_engines(folders)
    alone = TorchExecutor(folders[0])
    assert pair[0].kv_tokens
    assert alone.kv_tokens
    assert pair[0].kv_tokens < alone.kv_tokens
    for engine in (pair[1], pair[0], alone):
        engine.shutdown()


def test_a_head_in_another_dtype_takes_the_targets(tmp_path: Path) -> None:
    target = tiny_target(dtype=torch.bfloat16)
    folder = engines(tmp_path, target, random_head(tmp_path / "head", "speculators"))[1]
    tensors, theirs = load_file(folder / "rank0.safetensors"), load_file(tmp_path / "head/model.safetensors")
    assert torch.equal(tensors["fc.weight"], theirs["fc.weight"].bfloat16())
    assert torch.equal(tensors["d2t"], theirs["d2t"])
    qkv = [theirs[f"layers.0.self_attn.{part}_proj.weight"] for part in "qkv"]
    assert torch.equal(tensors["transformer.layers.0.attention.qkv.weight"], torch.cat(qkv).bfloat16())


@pytest.mark.parametrize("name", ["speculators", "eagle", "medusa"])
def test_a_head_that_is_not_finite_is_refused_by_name(tmp_path: Path, name: str) -> None:
    head = random_head(tmp_path / "head", name)
    file = next((tmp_path / "head").glob("*.safetensors"))
    tensors = load_file(file)
    broken = next(name for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.dim() > 1)
    tensors[broken][-1, -1] = torch.nan
    save_file(tensors, file)
    with pytest.raises(TensorError, match=f"{broken}: holds NaN or infinity"):
        engines(tmp_path, tiny_target(), head)


@pytest.mark.parametrize(
    ("sizes", "flaw"),
    [
        ({"hidden_size": 32, "head_dim": 8}, "has hidden_size 32, and the head is for a target with 16"),
        ({"vocab_size": 25}, "has vocab_size 25, and the head is for a target with 24"),
        (
            {"num_hidden_layers": 2},
            "the head reads the states after layers 1, 2, 3, but the target has 2 layers",
        ),
    ],
)
def test_a_head_of_another_target(tmp_path: Path, sizes: dict[str, Any], flaw: str) -> None:
    head = random_head(tmp_path / "head", "speculators")
    with pytest.raises(EngineError, match=flaw):
        engines(tmp_path, tiny_target(**sizes), head)
    assert not (tmp_path / "draft").exists()


def test_an_engine_that_was_built_for_another_target(tmp_path: Path) -> None:
    folders = engines(tmp_path / "a", tiny_target(), random_head(tmp_path / "head", "eagle"))
    others = engines(tmp_path / "b", tiny_target(vocab_size=24, dtype=torch.bfloat16), tmp_path / "head")
    with pytest.raises(
        EngineLoadError, match=r"is for a target of torch.float32 and 24 tokens, but this one has"
    ):
        load_engines([others[0], folders[1]])


def test_a_method_that_there_is_not(tmp_path: Path) -> None:
    folders = engines(tmp_path, tiny_target(), random_head(tmp_path / "head", "medusa"))
    change_config(folders[1], "pretrained_config", draft={"method": "hydra"})
    with pytest.raises(
        EngineLoadError, match=r"draft\.method is 'hydra'; the torch backend runs only None, 'eagle3'"
    ):
        load_engines(folders)


def test_a_tensor_that_is_missing(tmp_path: Path) -> None:
    folders = engines(tmp_path, tiny_target(), random_head(tmp_path / "head", "medusa"))
    file = folders[1] / "rank0.safetensors"
    tensors = load_file(file)
    del tensors["1.0.linear.bias"]
    save_file(tensors, file)
    with pytest.raises(EngineLoadError, match=r"tensor 1\.0\.linear\.bias is missing"):
        load_engines(folders)


def test_its_config_names_its_method_and_the_targets_limits(tmp_path: Path) -> None:
    head = read_head(random_head(tmp_path / "head", "speculators_qwen3"))
    target = engines(tmp_path, tiny_target(), tmp_path / "head", max_draft_len=6, max_seq_len=134)[0]
    build_head(head, target, tmp_path / "again")
    content = json.loads((tmp_path / "again/config.json").read_text())
    assert content == json.loads((tmp_path / "draft/config.json").read_text())
    draft, build = content["pretrained_config"]["draft"], content["build_config"]
    assert (draft["method"], draft["aux_layers"], draft["extra_norms"]) == (
        "eagle3",
        [1, 3],
        ["fc_norm", "norm_output"],
    )
    assert (build["max_seq_len"], build["max_draft_len"], build["speculative_decoding_mode"]) == (128, 0, 1)
