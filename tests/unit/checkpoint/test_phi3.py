"""Phi-3, whose tensors are stacks of several matrices, and its positions by `longrope`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.fakes.engine_dir import tiny_model
from tests.unit.checkpoint.logits import check_logits
from trtspec.base.errors import ModelError, TensorError
from trtspec.checkpoint import convert as convert_module
from trtspec.checkpoint import verify as verify_module
from trtspec.checkpoint.calibration import Amax, CalibratedRanges
from trtspec.checkpoint.convert import checkpoint_size, convert
from trtspec.checkpoint.convert_options import ConvertOptions, Mapping
from trtspec.checkpoint.verify import verify
from trtspec.models.families import family_of, longrope
from trtspec.models.source import Source, read_source

ORIGINAL = "original_max_position_embeddings"
ROTATED = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "hidden_size": 64}
FACTORS = {
    "short_factor": [1.0 + 0.1 * pair for pair in range(6)],
    "long_factor": [1.0 + 2.0 * pair for pair in range(6)],
}
LONG = {"type": "longrope", **FACTORS}


def phi(folder: Path, edit: dict[str, Any] | None = None, **changes: Any) -> Path:
    """A Phi whose positions turn three quarters of each head; `edit` changes its config.json afterwards."""
    options = {"partial_rotary_factor": 0.75, "rope_scaling": LONG, **ROTATED, **changes}
    tiny_model("phi3", dtype=torch.bfloat16, **options).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text()) | {ORIGINAL: 64} | (edit or {})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("share", [1.0, 0.75])
@pytest.mark.parametrize("longest", [64, 65])
def test_the_factors_are_those_for_the_longest_text(tmp_path: Path, longest: int, share: float) -> None:
    """transformers chooses them by the text alone, and the first ones for texts of up to 64 tokens here.

    In an engine for 64 any text is as there, and in one for 65 a text of 65.
    """
    own = {name: (factors * 2)[: int(8 * share)] for name, factors in FACTORS.items()}
    folder = phi(tmp_path / "model", partial_rotary_factor=share, rope_scaling={"type": "longrope", **own})
    source = read_source(folder)
    assert longrope.original(source) == 64
    check_logits(folder, 2, 1, longest=longest)


def test_a_checkpoint_has_the_keys_of_nvidias_conversion(tmp_path: Path) -> None:
    """As TensorRT-LLM's `Phi3Config.from_hugging_face` makes them of Phi-4-mini; the tensors are no others.

    The engine computes the rotations itself (`Attention.create_attention_const_params`).
    """
    for name, scaling in (("long", LONG), ("short", None)):
        phi(tmp_path / name, rope_scaling=scaling, max_position_embeddings=131072)
        convert(read_source(tmp_path / name), ConvertOptions("bfloat16"), tmp_path / f"{name}-checkpoint")
    config, short = (
        json.loads((tmp_path / f"{name}-checkpoint/config.json").read_text()) for name in ("long", "short")
    )
    assert {key: value for key, value in config.items() if short.get(key) != value} == {
        "position_embedding_type": "long_rope",
        ORIGINAL: 64,
        "longrope_scaling_short_factors": FACTORS["short_factor"],
        "longrope_scaling_long_factors": FACTORS["long_factor"],
    }
    assert (config["rotary_pct"], config["rotary_embedding_dim"], config["rotary_scaling"]) == (
        0.75,
        12,
        None,
    )
    files = [tmp_path / f"{name}-checkpoint/rank0.safetensors" for name in ("long", "short")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_key_that_is_null_counts_as_missing(tmp_path: Path) -> None:
    nulls = {"attention_factor": None, "factor": None}
    folder = phi(tmp_path / "model", {"rope_scaling": LONG | nulls})
    family_of(read_source(folder))


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ({"rope_scaling": LONG | {"rope_type": "yarn"}}, "rope type 'yarn' is not supported"),
        (
            {"rope_scaling": LONG | {"short_factor": [1.0] * 8}},
            "short_factor of .* must be 6 positive numbers",
        ),
        ({"rope_scaling": LONG | {"long_factor": [0] * 6}}, "long_factor of .* must be 6 positive numbers"),
        (
            {"rope_scaling": LONG | {"short_mscale": 1.1}},
            "short_mscale of rope type 'longrope': TensorRT-LLM",
        ),
        ({ORIGINAL: None}, f"has no {ORIGINAL}"),
        ({"rope_scaling": LONG | {ORIGINAL: 32}}, r"must be one number, not \[32, 64\]"),
    ],
)
def test_longrope_settings_that_tensorrt_llm_would_misread_are_refused(
    tmp_path: Path, edit: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelError, match=said):
        family_of(read_source(phi(tmp_path / "model", edit)))


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
