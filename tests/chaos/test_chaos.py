"""Chaos runs: everything that may happen, at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos.run import chaos


def test_a_short_run(tmp_path: Path) -> None:
    report = chaos(tmp_path, requests=300, clients=64, num_draft_faults=2, num_kills=1)

    assert not report["violations"], json.dumps(report, indent=1)
    assert {fault["fault"] for fault in report["faults"]} == {"fails", "hangs", "killed"}


@pytest.mark.chaos
def test_a_run_with_engines_that_are_models(tmp_path: Path) -> None:
    """Where the draft is a process of its own, which is killed, and stopped."""
    report = chaos(tmp_path, requests=2000, clients=64, num_draft_faults=3, num_kills=3, layout="bls")

    assert not report["violations"], json.dumps(report, indent=1)
    assert {"draft killed", "draft stopped"} < {fault["fault"] for fault in report["faults"]}


@pytest.mark.chaos
def test_a_long_run(tmp_path: Path) -> None:
    report = chaos(tmp_path, requests=20_000, clients=256, num_draft_faults=10, num_kills=5)

    print(json.dumps(report, indent=1))
    assert not report["violations"]
