"""Prompts to tune with, and costs that nobody has to wait for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.train.tune.made import costs
from trtspec.train.tune import costs as tune_costs


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    rows = [{"category": "ab"[n % 2], "prompt": f"{n} of them" * 3, "max_tokens": 24} for n in range(10)]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of the engine for next to nothing, in place of times of this machine."""

    def said(self: tune_costs.CostMeasurement, advance: Any) -> Any:
        return costs(0.05)

    monkeypatch.setattr(tune_costs.CostMeasurement, "costs", said)
