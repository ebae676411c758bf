"""The random pair as what other people's code and the rest of trtspec read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.support.command_line import trtspec
from trtspec.measure.selftest import random_pair
from trtspec.recipe.shipped import TINY


@pytest.fixture(params=[None, 16], ids=["llama", "window"])
def pair(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, size in {"HIDDEN": 128, "INTERMEDIATE": 256, "HEADS": 2}.items():
        monkeypatch.setattr(random_pair, name, size)
    random_pair.write_random_pair(tmp_path, TINY / "target", 2101, request.param)
    return tmp_path


def test_transformers_reads_a_random_pair_that_agrees_often_but_not_always(pair: Path) -> None:
    models = [
        AutoModelForCausalLM.from_pretrained(pair / role, dtype=torch.float32) for role in ("target", "draft")
    ]
    tokenizer = AutoTokenizer.from_pretrained(pair / "target")
    assert len(tokenizer) == models[0].config.vocab_size == 2101
    text = torch.randint(1, 2000, (4, 64), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        target, draft = (model(text).logits.argmax(-1) for model in models)
    agreement = float((target == draft).double().mean())
    assert 0.5 < agreement < 0.97
    assert len(set(target.flatten().tolist())) > 200  # not one token again and again


def test_the_scales_of_a_random_pair_are_those_of_its_weights(pair: Path) -> None:
    fp8 = {
        role: {
            "model": str(pair / role),
            "quantization": {
                "weights": "fp8",
                "kv_cache": "fp8",
                "calibration": {"dataset": str(pair / role / "calibration.json")},
            },
        }
        for role in ("target", "draft")
    }
    values = {"name": "fp8", **fp8, "speculation": {"max_draft_len": 4}, "hardware": {"gpu": "h100"}}
    recipe = pair / "recipe.yaml"
    recipe.write_text(json.dumps({**values, "engine": {"max_batch_size": 2, "max_seq_len": 64}}))
    done = trtspec("convert", recipe, "--output", pair / "out", folder=pair)
    assert done.returncode == 0, done.stderr
    found = json.loads((pair / "out/target/checkpoint/config.json").read_text())
    assert found["quantization"]["quant_algo"] == "FP8"
