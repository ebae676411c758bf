"""FP8 drafts of their target's layers, against the same layers as a model of their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.checkpoint.fp8_folders import AUTO_FP8, COMPRESSED_TENSORS, quantize
from trtspec.checkpoint.calibrate.calibrate import CalibrateOptions, calibrate
from trtspec.checkpoint.calibration import Amax, CalibratedRanges, of_layers
from trtspec.checkpoint.convert import convert
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.checkpoint.layers.chosen import write_model
from trtspec.checkpoint.verify import verify
from trtspec.models import layers
from trtspec.models.source import Source, read_source

KEPT = (0, 2, 3)


def two(folder: Path) -> tuple[Source, Source]:
    """The layers of the model in a folder, as a part of it and as a model beside it."""
    part = layers.of_layers(read_source(folder), KEPT)
    write_model(part, folder.parent / "alone")
    return part, read_source(folder.parent / "alone")


def test_layers_are_calibrated_as_the_model_that_they_are(
    tmp_path: Path, llama_folder: Callable[..., Path]
) -> None:
    folder = llama_folder(num_hidden_layers=4, intermediate_size=96)
    texts = tmp_path / "texts.jsonl"
    texts.write_text("\n".join(json.dumps({"text": f"{number} bottles of ale " * 3}) for number in range(12)))
    options = CalibrateOptions("bfloat16", True, 8, 24, 2, 7, "text", False)
    part, alone = (calibrate(source, texts, options, {}) for source in two(folder))
    assert part.linears == alone.linears
    assert part.kv == alone.kv
    assert part.quality == alone.quality


@pytest.mark.parametrize("form", [COMPRESSED_TENSORS, AUTO_FP8], ids=["compressed-tensors", "AutoFP8"])
def test_layers_of_a_published_fp8_model_keep_their_scales(
    tmp_path: Path, llama_folder: Callable[..., Path], form: dict[str, object]
) -> None:
    folder = llama_folder(num_hidden_layers=4, intermediate_size=96)
    quantize(folder, form)
    options = ConvertOptions("bfloat16", fp8=True, fp8_kv_cache=True)
    part, alone = two(folder)
    for name, source in (("part", part), ("whole", alone)):
        convert(source, options, tmp_path / name)
        verify(source, options, tmp_path / name)
    for file in ("config.json", "rank0.safetensors"):
        assert (tmp_path / "part" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_ranges_that_were_found_before_are_those_of_the_layers() -> None:
    names = [f"model.layers.{layer}.mlp.up_proj" for layer in range(4)]
    found = CalibratedRanges(
        {name: Amax(number, number) for number, name in enumerate(names)},
        {f"model.layers.{layer}.self_attn.k_proj": float(layer) for layer in range(4)},
        {"texts": 1},
    )
    kept = of_layers(found, KEPT)
    assert kept.linears == {name: Amax(old, old) for name, old in zip(names, KEPT, strict=False)}
    assert kept.kv == {f"model.layers.{new}.self_attn.k_proj": float(old) for new, old in enumerate(KEPT)}
