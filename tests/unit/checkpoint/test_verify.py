"""A checkpoint that was changed after it was written is found out, whatever was changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.unit.checkpoint.test_placement import calibration_of
from trtspec.base.errors import ModelError, TensorError
from trtspec.checkpoint import verify as module
from trtspec.checkpoint.convert import checkpoint_size, convert
from trtspec.checkpoint.convert_options import ConvertOptions, Mapping
from trtspec.checkpoint.verify import verify
from trtspec.models.source import Source, read_source

GRID = {"num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 128, "intermediate_size": 512}
Change = Callable[[dict[str, torch.Tensor]], Any]


@pytest.fixture
def made(llama_folder: Callable[..., Path], tmp_path: Path) -> Callable[..., tuple[Source, ConvertOptions]]:
    """Converts a random Llama into `tmp_path/out`."""

    def make(mapping: Mapping, fp8: bool = False, **config: Any) -> tuple[Source, ConvertOptions]:
        folder = llama_folder(**GRID, **{"num_hidden_layers": 3, "vocab_size": 265} | config)
        calibration = calibration_of(load_file(folder / "model.safetensors"), 5.0) if fp8 else None
        options = ConvertOptions("float16", mapping, fp8, fp8, calibration)
        convert(read_source(folder), options, tmp_path / "out")
        return read_source(folder), options

    return make


@pytest.mark.parametrize("mapping", [Mapping(), Mapping(2, 2), Mapping(4), Mapping(1, 3), Mapping(8, 2)])
@pytest.mark.parametrize("fp8", [False, True])
def test_verification_of_a_good_checkpoint_compares_every_byte(
    made: Callable[..., tuple[Source, ConvertOptions]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mapping: Mapping,
    fp8: bool,
) -> None:
    monkeypatch.setattr(module, "CHUNK", 1000)
    source, options = made(mapping, fp8)
    compared: list[int] = []
    verify(source, options, tmp_path / "out", compared.append)
    assert sum(compared) == checkpoint_size(source, options)  # every byte of every weight, zeros among them


def layer(name: str) -> str:
    return f"transformer.layers.1.{name}"


def swapped(one: str, other: str) -> Change:
    return lambda tensors: tensors.update({one: tensors[other], other: tensors[one]})


def edited(name: str, edit: Callable[[torch.Tensor], Any]) -> Change:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        edit(tensors[name].view(-1).view(torch.uint8))

    return change


def replaced(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return lambda tensors: tensors.update({name: make(tensors[name]).contiguous()})


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize(
    ("rank", "change", "said"),
    [
        (1, swapped(layer("mlp.fc.weight"), layer("mlp.gate.weight")), "row 0 is not row 128 of .*gate_proj"),
        (0, edited(layer("mlp.proj.weight"), lambda bits: bits[-1].bitwise_xor_(1)), "proj.* is not row"),
        (
            3,
            edited(layer("attention.qkv.weight"), lambda bits: bits[-1].bitwise_xor_(1)),
            "row .* of .*v_proj",
        ),
        (2, edited(layer("post_layernorm.weight"), lambda bits: bits[0].bitwise_xor_(1)), "post_layernorm"),
        (3, replaced(layer("attention.qkv.weight"), lambda w: w.roll(16, 0)), "attention.qkv"),
        (3, edited("transformer.vocab_embedding.weight", lambda bits: bits[-1].fill_(1)), "of zero"),
        (0, lambda tensors: tensors.pop("transformer.ln_f.weight"), "ln_f.weight: this tensor is missing"),
        (
            0,
            lambda tensors: tensors.update(extra=torch.zeros(1)),
            "extra: the model has no such tensor",
        ),
        (1, replaced(layer("mlp.fc.weight"), lambda w: w[:-16]), r"has shape \[112, 128\], not 128 rows"),
        (1, replaced(layer("mlp.proj.weight"), lambda w: w[:, :-16]), "not 128 columns"),
        (1, replaced(layer("mlp.fc.weight"), lambda w: w.float()), "has dtype F32, not F"),
    ],
)
def test_a_change_is_found(
    made: Callable[..., tuple[Source, ConvertOptions]],
    tmp_path: Path,
    fp8: bool,
    rank: int,
    change: Change,
    said: str,
) -> None:
    source, options = made(Mapping(4), fp8)
    file = tmp_path / f"out/rank{rank}.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    with pytest.raises(TensorError, match=said) as caught:
        verify(source, options, tmp_path / "out")
    assert caught.value.repair


@pytest.mark.parametrize("name", ["mlp.fc.weights_scaling_factor", "attention.kv_cache_scaling_factor"])
def test_a_scale_off_by_a_factor(
    made: Callable[..., tuple[Source, ConvertOptions]], tmp_path: Path, name: str
) -> None:
    source, options = made(Mapping(2), fp8=True)
    file = tmp_path / "out/rank1.safetensors"
    tensors = load_file(file)
    tensors[layer(name)] *= 2
    save_file(tensors, file)
    with pytest.raises(TensorError, match=f"{name}: is .*, not "):
        verify(source, options, tmp_path / "out")


def test_ranks_in_another_order(made: Callable[..., tuple[Source, ConvertOptions]], tmp_path: Path) -> None:
    source, options = made(Mapping(2, 2), num_hidden_layers=4)
    zero, one = (tmp_path / f"out/rank{rank}.safetensors" for rank in (0, 1))
    zero.rename(tmp_path / "other")
    one.rename(zero)
    (tmp_path / "other").rename(one)
    with pytest.raises(TensorError, match="is not row"):
        verify(source, options, tmp_path / "out")


@pytest.mark.parametrize("key", ["mapping", "vocab_size", "rotary_base"])
def test_a_config_that_says_something_else(
    made: Callable[..., tuple[Source, ConvertOptions]], tmp_path: Path, key: str
) -> None:
    source, options = made(Mapping(2))
    config = tmp_path / "out/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {key: 1}))
    with pytest.raises(ModelError, match=f"{key} is 1, not"):
        verify(source, options, tmp_path / "out")


def test_a_rank_that_is_missing(made: Callable[..., tuple[Source, ConvertOptions]], tmp_path: Path) -> None:
    source, options = made(Mapping(2))
    (tmp_path / "out/rank1.safetensors").unlink()
    with pytest.raises(ModelError, match=r"rank1\.safetensors: is missing"):
        verify(source, options, tmp_path / "out")
