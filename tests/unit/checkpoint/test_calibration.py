from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trtspec.base.errors import ModelError
from trtspec.checkpoint.blueprint import scales_of, shape_of, to_scale
from trtspec.checkpoint.calibration import (
    Amax,
    CalibratedRanges,
    Quality,
    read_calibration,
    write_calibration,
)
from trtspec.models.families.family import FamilyTensor, TensorPart


def test_a_scale_is_the_float32_quotient_of_torch() -> None:
    amaxes = torch.rand(10_000, generator=torch.Generator().manual_seed(0)) * 100
    assert [to_scale(float(amax)) for amax in amaxes] == (amaxes / 448).tolist()


def test_a_stored_scale_comes_back() -> None:
    """An FP8 model's scale is kept as amax = scale * 448 in float64."""
    scales = torch.rand(10_000, generator=torch.Generator().manual_seed(0)).tolist()
    assert [to_scale(scale * 448) for scale in scales] == scales


def weight(name: str, layer: int, *modules: str) -> FamilyTensor:
    return FamilyTensor(
        name, tuple(TensorPart(f"{module}.weight", (8, 8)) for module in modules), layer, linear=True
    )


WEIGHTS = [
    weight("attention.qkv.weight", 0, "a.q_proj", "a.k_proj", "a.v_proj"),
    weight("mlp.fc.weight", 0, "gate"),
    weight("mlp.gate.weight", 0, "up"),
    weight("mlp.fc.weight", 1, "gate1"),
    weight("mlp.gate.weight", 1, "up1"),
    FamilyTensor("input_layernorm.weight", (TensorPart("norm.weight", (8,)),), 0),
]
AMAX = {
    "a.q_proj": (1, 9),
    "a.k_proj": (3, 7),
    "a.v_proj": (2, 8),
    "gate": (4, 5),
    "up": (6, 2),
    "gate1": (1, 1),
    "up1": (1, 1),
}
LINEARS = {name: Amax(448.0 * weight, 448.0 * given) for name, (weight, given) in AMAX.items()}


def test_weights_that_one_product_reads_share_one_scale() -> None:
    calibration = CalibratedRanges(LINEARS, {"a.k_proj": 896.0, "a.v_proj": 1344.0}, {})
    found = scales_of(WEIGHTS, calibration, kv_cache=True)
    assert [set(found[weight].weights.values()) for weight in WEIGHTS[:-1]] == [{3}, {6}, {6}, {1}, {1}]
    assert found[WEIGHTS[0]].tensors == {
        "attention.qkv.weights_scaling_factor": (3,),
        "attention.qkv.activation_scaling_factor": (9,),
        "attention.kv_cache_scaling_factor": (3,),
        "attention.k_cache_scaling_factor": (2,),
        "attention.v_cache_scaling_factor": (3,),
    }
    gate = {"mlp.gate.weights_scaling_factor": (6,), "mlp.gate.activation_scaling_factor": (5,)}
    assert found[WEIGHTS[2]].tensors == gate
    assert WEIGHTS[-1] not in found


def test_each_expert_has_a_scale_of_its_weights_and_all_have_one_of_their_input() -> None:
    modules = ("up0", "gate0", "up1", "gate1")
    fc = replace(weight("mlp.fc.weight", 1, *modules), experts=2)
    amaxes = {name: Amax(448.0 * number, 448.0 / number) for number, name in enumerate(modules, 1)}
    found = scales_of([fc], CalibratedRanges(amaxes, {}, {}), kv_cache=False)[fc]
    assert found.weights == {"up0": 2, "gate0": 2, "up1": 4, "gate1": 4}
    assert found.tensors == {
        "mlp.fc.weights_scaling_factor": (2, 4),
        "mlp.fc.activation_scaling_factor": (1,),
    }
    assert [shape_of(scales) for scales in found.tensors.values()] == [(2, 1), (1,)]


def test_a_cache_scale_is_at_least_one_unless_published_and_there_only_if_asked_for() -> None:
    calibration = CalibratedRanges(LINEARS, {"a.k_proj": 448.0 / 64, "a.v_proj": 448.0 / 32}, {})
    with_cache = scales_of(WEIGHTS, calibration, kv_cache=True)[WEIGHTS[0]].tensors
    assert {scale for name, scale in with_cache.items() if "cache" in name} == {(1,)}
    published = scales_of(WEIGHTS, calibration, kv_cache=True, least_cache_scale=0.0)[WEIGHTS[0]].tensors
    assert [published[f"attention.{name}_cache_scaling_factor"] for name in ("kv", "k", "v")] == [
        *((1 / 32,), (1 / 64,), (1 / 32,)),
    ]
    without = scales_of(WEIGHTS, calibration, kv_cache=False)[WEIGHTS[0]].tensors
    assert not any("cache" in name for name in without)


@pytest.mark.parametrize(
    ("linears", "kv"), [({}, {"a.k_proj": 1.0, "a.v_proj": 1.0}), (LINEARS, {"a.k_proj": 1.0})]
)
def test_a_calibration_of_another_model(linears: dict[str, Amax], kv: dict[str, float]) -> None:
    with pytest.raises(ModelError, match=r"calibration.* has no values for a.[qv]_proj"):
        scales_of(WEIGHTS, CalibratedRanges(linears, kv, {}), kv_cache=True)


FOUND = CalibratedRanges(
    linears={"model.layers.0.self_attn.q_proj": Amax(float(np.float32(0.1)), float(np.float32(1 / 3)))},
    kv={"model.layers.0.self_attn.k_proj": float(np.float32(7.7))},
    provenance={"samples": 4, "dataset": "tëxts.jsonl"},
    quality=Quality(2, 100, 0.99, 0.001, 7.5, 7.4),
)


def test_every_number_comes_back_to_the_last_bit(tmp_path: Path) -> None:
    for calibration in (FOUND, CalibratedRanges(FOUND.linears, {}, {})):
        write_calibration(tmp_path / "calibration.json", calibration)
        assert read_calibration(tmp_path / "calibration.json") == calibration


def change(content: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split("/")
    for key in parents:
        content = content[key]
    content[last] = value


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("format", 2, "is a calibration of format 2; this trtspec reads 1"),
        ("linears", [], "is not a calibration of trtspec"),
        ("linears/x", 3.0, "is not a calibration of trtspec"),
        ("linears/x", {"weight": 0.0, "input": 1.0}, "x, weight: 0.0 is not a valid largest absolute value"),
        ("linears/x", {"weight": 1.0, "input": -2.0}, "x, input: -2.0 is not a valid largest absolute value"),
        ("linears/x", {"weight": 1.0, "input": "3"}, "x, input: '3' is not a valid largest absolute value"),
        ("kv/x", float("inf"), "x, output: inf is not a valid largest absolute value"),
        ("kv/x", 1e300, "x, output: 1e.300 is not a valid largest absolute value"),
        ("kv/x", 1e-300, "x, output: 1e-300 is not a valid largest absolute value"),
        ("quality", {"texts": 1}, "is not a calibration of trtspec"),
    ],
)
def test_a_file_that_was_changed(tmp_path: Path, path: str, value: Any, said: str) -> None:
    file = tmp_path / "calibration.json"
    write_calibration(file, FOUND)
    content = json.loads(file.read_text())
    change(content, path, value)
    file.write_text(json.dumps(content))
    with pytest.raises(ModelError, match=said) as caught:
        read_calibration(file)
    assert caught.value.subject == str(file)
    assert caught.value.repair


@pytest.mark.parametrize("text", ["", "[]", "{}", "\ufeff{", '{"format": 1'])
def test_a_file_that_is_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "calibration.json"
    file.write_text(text)
    with pytest.raises(ModelError, match="is not a calibration of trtspec"):
        read_calibration(file)
    with pytest.raises(ModelError, match="is missing"):
        read_calibration(tmp_path / "other.json")
