"""Positions by `longrope`, as Phi-3-mini-128k and Phi-4-mini have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fakes.engine_dir import tiny_model
from tests.unit.checkpoint.logits import check_logits
from trtspec.base.errors import ModelError
from trtspec.checkpoint.convert import convert
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.models.families import family_of, longrope
from trtspec.models.source import read_source

ORIGINAL = "original_max_position_embeddings"
SIZES = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "hidden_size": 64}
FACTORS = {
    "short_factor": [1.0 + 0.1 * pair for pair in range(6)],
    "long_factor": [1.0 + 2.0 * pair for pair in range(6)],
}
LONG = {"type": "longrope", **FACTORS}


def phi(folder: Path, edit: dict[str, Any] | None = None, **changes: Any) -> Path:
    """A Phi whose positions turn three quarters of each head; `edit` changes its config.json afterwards."""
    options = {"partial_rotary_factor": 0.75, "rope_scaling": LONG, **SIZES, **changes}
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
