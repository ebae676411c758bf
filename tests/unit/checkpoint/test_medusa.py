"""A target with Medusa's heads: the tensors of NVIDIA's converter, by its published source.

`load_medusa_hf` of `tensorrt_llm/models/medusa/weight.py` (releases 1.0 to 1.2) gives rank r of N the r-th of
N equal parts, along the first dimension, of each head's matrices and biases. `MedusaForCausalLm` beside it
has a module of that name and shape for each, with the vocabulary filled up to a multiple of N.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from tests.fakes.heads import write_head
from trtspec.checkpoint.convert import convert, write
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.checkpoint.mapping import Mapping
from trtspec.checkpoint.medusa import draw_medusa
from trtspec.cli.app import app
from trtspec.errors import ModelError
from trtspec.models.heads.head import Head
from trtspec.models.heads.reading import read_head
from trtspec.models.source import read_source

HEADS, BLOCKS = 3, 1
SIZES = {"hidden_size": 16, "vocab_size": 24, "num_attention_heads": 4, "num_key_value_heads": 4}


@pytest.fixture
def head(tmp_path: Path) -> Head:
    return read_head(write_head(tmp_path / "heads", "medusa"))


def expected(tensors: dict[str, torch.Tensor], tp_size: int, rank: int) -> dict[str, torch.Tensor]:
    """The rank's tensors of all heads, by the rules of `load_medusa_hf`."""
    theirs = {}
    for head in range(HEADS):
        for block in range(BLOCKS):
            for kind in ("weight", "bias"):
                theirs[f"medusa_heads.{head}.medusa_layers.{block}.linear.{kind}"] = (
                    f"{head}.{block}.linear.{kind}"
                )
        theirs[f"medusa_heads.{head}.lm_head.weight"] = f"{head}.{BLOCKS}.weight"
    return {ours: torch.chunk(tensors[name], tp_size)[rank] for ours, name in theirs.items()}


@pytest.mark.parametrize("tp_size", [1, 2, 4])
def test_names_shapes_and_numbers_are_nvidias(
    llama_folder: Callable[..., Path], head: Head, tmp_path: Path, tp_size: int
) -> None:
    source = read_source(llama_folder(**SIZES))
    options = ConvertOptions("float16", Mapping(tp_size))
    write(draw_medusa(source, head, options, 63), tmp_path / "both")
    convert(source, options, tmp_path / "alone")
    stored = load_file(head.folder / "medusa_lm_head.safetensors")
    for rank in range(tp_size):
        alone = load_file(tmp_path / f"alone/rank{rank}.safetensors")
        both = load_file(tmp_path / f"both/rank{rank}.safetensors")
        wanted = {name: tensor.half() for name, tensor in expected(stored, tp_size, rank).items()}
        assert set(both) == {*alone, *wanted}
        for name, tensor in (alone | wanted).items():
            torch.testing.assert_close(both[name], tensor, rtol=0, atol=0)


def test_the_configuration_has_medusas_keys_beside_the_targets(
    llama_folder: Callable[..., Path], head: Head, tmp_path: Path
) -> None:
    source = read_source(llama_folder(**SIZES))
    write(draw_medusa(source, head, ConvertOptions("bfloat16"), 63), tmp_path / "both")
    convert(source, ConvertOptions("bfloat16"), tmp_path / "alone")
    alone, both = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("alone", "both"))
    assert both == {
        **alone,
        "architecture": "MedusaForCausalLM",
        "max_draft_len": 63,
        "num_medusa_heads": HEADS,
        "num_medusa_layers": BLOCKS,
    }


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (ConvertOptions("float16", Mapping(1, 2)), "pipeline ranks"),
        (ConvertOptions("float16", fp8=True), "is to be FP8"),
    ],
)
def test_what_the_engine_cannot_be_is_refused(
    llama_folder: Callable[..., Path], head: Head, options: ConvertOptions, problem: str
) -> None:
    with pytest.raises(ModelError, match=problem):
        draw_medusa(read_source(llama_folder(**SIZES)), head, options, 63)


def test_heads_of_another_target_are_refused(llama_folder: Callable[..., Path], head: Head) -> None:
    with pytest.raises(ModelError, match="hidden size"):
        draw_medusa(read_source(llama_folder()), head, ConvertOptions("float16"), 63)


def test_heads_of_another_method_are_refused(llama_folder: Callable[..., Path], head: Head) -> None:
    with pytest.raises(ModelError, match="not Medusa's"):
        draw_medusa(
            read_source(llama_folder(**SIZES)), replace(head, method="eagle"), ConvertOptions("float16"), 63
        )


def test_the_command_converts_and_says_how_it_is_built(
    llama_folder: Callable[..., Path], head: Head, tmp_path: Path
) -> None:
    target = llama_folder(**SIZES)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"name: m\ntarget: {{model: {target}, dtype: float16}}\nspeculation: {{method: ngram}}\n"
        "engine: {backend: torch, max_seq_len: 64}\nhardware: {gpu: none}\n"
    )
    command = [
        "convert",
        str(recipe),
        "--medusa-heads",
        str(head.folder),
        "--output",
        str(tmp_path / "b"),
        "--json",
    ]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.exception
    said = json.loads(result.stdout)
    assert said["checkpoint"] == str(tmp_path / "b/medusa/checkpoint")
    assert (tmp_path / "b/medusa/checkpoint/rank0.safetensors").exists()
    argv = said["build"]
    assert argv[argv.index("--speculative_decoding_mode") + 1] == "medusa"
    longest = int(argv[argv.index("--max_draft_len") + 1])
    batch, tokens = (int(argv[argv.index(f"--max_{name}") + 1]) for name in ("batch_size", "num_tokens"))
    assert longest == json.loads((tmp_path / "b/medusa/checkpoint/config.json").read_text())["max_draft_len"]
    assert tokens >= batch * (longest + 1)
    assert said["parameters"]["decoding_mode"] == "medusa"
    assert said["parameters"]["medusa_choices"].count("{") == longest
