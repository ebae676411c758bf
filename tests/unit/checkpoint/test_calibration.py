from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trtspec.base.errors import ModelError
from trtspec.checkpoint.calibration import (
    Amax,
    CalibratedRanges,
    Quality,
    read_calibration,
    write_calibration,
)

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
