"""The page of what was proven where: its rows name what is there, and bundles of self-tests change it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.proven import PRECISIONS, Level, named, page_of, releases_of, results
from trtspec.backends.table import backend_named

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("row", named(), ids=lambda row: f"{row['engine']}-{row['methods']}-{row['proof']}")
def test_each_proof_names_a_test_that_is_there_and_what_the_engine_runs(row: dict[str, str]) -> None:
    file, function = row["test"].split("::")
    assert re.search(rf"^def {function}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    backend = backend_named(row["engine"])
    for method in row["methods"].split():
        assert row["releases"] == "all" or set(row["releases"].split()) <= set(releases_of(backend, method))
    assert set(row["precisions"].split()) <= set(PRECISIONS)
    assert Level.of(row["proof"]) in (Level.STAND_IN, Level.MAKER, Level.CPU)


def bundle(**states: str) -> dict[str, Any]:
    """The `selftest.json` of a self-test on a GPU, in which one check of each build ended so."""
    outcomes = [{"build": name, "check": "rounds", "state": state} for name, state in states.items()]
    return {"gpu": "NVIDIA L40S", "release": "1.2.0", "date": "2026-12-24", "outcomes": outcomes}


def cells(*bundles: dict[str, Any], method: str = "draft_model") -> list[str]:
    (row,) = (line for line in page_of(bundles).splitlines() if f"`tensorrt_llm` | `{method}`" in line)
    return row.strip("| ").split(" | ")[2:4]


def test_a_bundle_of_a_gpu_moves_the_cells_of_its_builds() -> None:
    assert cells() == ["stand-in", "stand-in"]
    found = cells(bundle(fp8="ok", reference="ok"))
    assert found == ["stand-in", "1.2.0: GPU (NVIDIA L40S, 2026-12-24); others: stand-in"]
    assert cells(bundle(lookahead="ok"), method="lookahead")[0].startswith("1.2.0: GPU")


@pytest.mark.parametrize("after", ["ok", "not tried"])
def test_a_difference_is_shown_whatever_else_holds(after: str) -> None:
    wrong = bundle(**{"fp8": "ok", "fp8-bls": "differs", "random-fp8": after})
    for bundles in ([wrong], [wrong, bundle(fp8="ok")]):
        said = "1.2.0: differs (NVIDIA L40S, 2026-12-24; fp8-bls: rounds); others: stand-in"
        assert cells(*bundles) == ["stand-in", said]


@pytest.mark.parametrize("state", ["left out", "not tried"])
def test_what_was_not_tried_is_no_proof(state: str) -> None:
    assert cells(bundle(fp8=state)) == ["stand-in", "stand-in"]
    assert cells(bundle(fp8="ok") | {"gpu": None, "release": None}) == ["stand-in", "stand-in"]


def test_results_that_are_kept_have_what_the_page_needs() -> None:
    for found in results():
        assert {"gpu", "release", "date", "outcomes"} <= found.keys()
