"""Phi-3, whose tensors are stacks of several matrices."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.fakes.engine_dir import tiny_model
from trtspec.base.errors import TensorError
from trtspec.checkpoint import convert as convert_module
from trtspec.checkpoint import verify as verify_module
from trtspec.checkpoint.calibration import Amax, CalibratedRanges
from trtspec.checkpoint.convert import checkpoint_size, convert
from trtspec.checkpoint.convert_options import ConvertOptions, Mapping
from trtspec.checkpoint.verify import verify
from trtspec.models.source import Source, read_source

SIZES = {"num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 128, "head_dim": 16}
LAYER = "transformer.layers.1"


@pytest.fixture
def source(tmp_path: Path) -> Source:
    model = tiny_model("phi3", dtype=torch.bfloat16, intermediate_size=192, **SIZES)
    model.save_pretrained(tmp_path / "model", max_shard_size="100KB")
    return read_source(tmp_path / "model")


def calibration(source: Source) -> CalibratedRanges:
    modules = [name.removesuffix(".weight") for name in source.tensors if name.endswith("proj.weight")]
    caches = {f"model.layers.{layer}.self_attn.{letter}_proj": 2.0 for layer in (0, 1) for letter in "kv"}
    return CalibratedRanges({name: Amax(1.5, 3.0) for name in modules}, caches, {})


@pytest.mark.parametrize("tensor", [1, 2, 4])
@pytest.mark.parametrize("fp8", [False, True])
def test_ranks_have_their_shares_of_each_matrix(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tensor: int, fp8: bool
) -> None:
    """In pieces that begin and end anywhere; of four ranks two have the same key and value."""
    for module in (convert_module, verify_module):
        monkeypatch.setattr(module, "CHUNK", 1000)
    scales = calibration(source) if fp8 else None
    options = ConvertOptions("bfloat16", Mapping(tensor), fp8, fp8, scales)
    written: list[int] = []
    convert(source, options, tmp_path / "out", written.append)
    assert sum(written) == checkpoint_size(source, options)
    verify(source, options, tmp_path / "out")

    theirs = {name: value for file in source.files[2:] for name, value in load_file(file).items()}
    q, k, v = theirs["model.layers.1.self_attn.qkv_proj.weight"].split([128, 32, 32])
    gate, up = theirs["model.layers.1.mlp.gate_up_proj.weight"].split(192)
    copies = max(tensor // 2, 1)
    k, v = (heads.unflatten(0, (2, 16)).repeat_interleave(copies, 0).flatten(0, 1) for heads in (k, v))
    for rank in range(tensor):
        ours = load_file(tmp_path / f"out/rank{rank}.safetensors")
        for name, matrices in (("attention.qkv", (q, k, v)), ("mlp.fc", (up, gate))):
            expected = torch.cat([matrix.chunk(tensor)[rank] for matrix in matrices])
            if fp8:
                expected = (expected.float() / (1.5 / 448)).clamp(-448, 448).to(torch.float8_e4m3fn)
            found = ours[f"{LAYER}.{name}.weight"]
            assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8)), name
        assert f"{LAYER}.mlp.gate.weight" not in ours


def test_halves_the_wrong_way_round_are_found_out(source: Source, tmp_path: Path) -> None:
    options = ConvertOptions("bfloat16", Mapping(2))
    convert(source, options, tmp_path / "out")
    file = tmp_path / "out/rank1.safetensors"
    tensors = load_file(file)
    tensors[f"{LAYER}.mlp.fc.weight"] = tensors[f"{LAYER}.mlp.fc.weight"].roll(96, 0)
    save_file(tensors, file)
    # Both halves are wrong, and are read at the same time.
    wrong = r"mlp\.fc\.weight: row (0 is not row 288|96 is not row 96) of .*gate_up_proj"
    with pytest.raises(TensorError, match=wrong):
        verify(source, options, tmp_path / "out")
