"""What `trtspec plan --fleet` says."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.unit.measure.bench.results import result
from trtspec.cli.app import app
from trtspec.measure.bench.result import write

RECIPES = Path(__file__).parents[4] / "recipes"
LARGE, TINY = RECIPES / "llama-3.1-405b-8xh200.yaml", RECIPES / "tiny/recipe.yaml"


def fleet(*args: str | Path) -> Result:
    return CliRunner().invoke(app, ["plan", *map(str, args), "--fleet"])


def told(*args: str | Path) -> dict[str, Any]:
    found = fleet(*args, "--json")
    assert found.exit_code == 0, found.output
    parsed: dict[str, Any] = json.loads(found.stdout)
    return parsed


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """The recipe of 405B with a load, bounds and a price."""
    file = tmp_path / "recipe.yaml"
    file.write_text(
        LARGE.read_text()
        + """
fleet:
  requests_per_second: 1000
  time_to_first_token_ms: 1000
  inter_token_ms: 50
  price_per_gpu_hour: {h200: 3.5}
"""
    )
    return file


def test_no_number_has_an_exponent(hub_cache: Path, recipe: Path) -> None:
    rows = dict(
        line.split("  ", 1) for line in fleet(recipe, "--rate", "0.001").stdout.splitlines() if "  " in line
    )
    assert rows["GPU hours, 1M tokens"].split() == ["8,680", "8,680"]


def test_thousands_of_gpus_in_seconds(hub_cache: Path, recipe: Path) -> None:
    begin = time.process_time()
    found = told(recipe)
    assert time.process_time() - begin < 15
    plain, drafts = found["without_drafts"], found["with_drafts"]
    assert plain["gpus"] == 8 * plain["replicas"] > 3000
    assert 1000 < drafts["gpus"] < plain["gpus"]
    for arm in (plain, drafts):
        assert arm["steady"]["time_to_first_token"] <= 1.0
        assert arm["steady"]["inter_token"] <= 0.05
        fewer, more = arm["spread"]["replicas"]
        assert fewer < arm["replicas"] < more
        # Little: requests at work are those that come in the time of one.
        present = arm["steady"]["texts"] + arm["steady"]["waiting"]
        assert present * arm["replicas"] == pytest.approx(1000 * arm["steady"]["end_to_end"], rel=0.05)
        assert arm["cost"]["hour"] == arm["gpus"] * 3.5
        assert arm["cost"]["million"] == pytest.approx(
            arm["cost"]["hour"] / (1000 * 256 * 3600) * 1e6, rel=0.02
        )
    assert found["verdict"] == "yes"


def test_the_page_says_what_it_assumes(hub_cache: Path) -> None:
    page = fleet(LARGE, "--rate", "3", "--workload", "synthetic:input=100,output=40").stdout
    assert "3 requests/s of 100 + 40 tokens on average; no bound on latencies" in page
    assert "no price: write fleet: {price_per_gpu_hour: {h200: …}} in the recipe" in page
    assert "measure: " in page  # so few replicas that one more or less decides
    assert "(±9%)" in page


def test_bounds_that_no_fleet_keeps(hub_cache: Path, recipe: Path) -> None:
    recipe.write_text(recipe.read_text().replace("inter_token_ms: 50", "inter_token_ms: 5"))
    found = fleet(recipe)
    assert found.exit_code == 0
    assert (
        "without drafts: no number of replicas is enough: for a request alone, a token takes 18.4 ms"
        in found.stderr
    )
    assert json.loads(fleet(recipe, "--json").stdout)["without_drafts"]["replicas"] is None


def test_a_draft_with_few_places_takes_none_of_those_without_it(hub_cache: Path, tmp_path: Path) -> None:
    args = ("--rate", "3", "--workload", "synthetic:input=100,output=40")
    few = tmp_path / "recipe.yaml"
    few.write_text(LARGE.read_text().replace("draft:\n", "draft:\n  build: {max_batch_size: 2}\n"))
    alone, found = told(LARGE, *args), told(few, *args)
    assert found["with_drafts"]["places"] == 2
    assert found["without_drafts"] == alone["without_drafts"]


def test_no_rate_is_endless(hub_cache: Path) -> None:
    assert fleet(LARGE, "--rate", "inf").exit_code == 2


def test_lengths_of_a_trace(hub_cache: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        '{"input_length": 3000, "output_length": 100}\n{"input_length": 1000, "output_length": 50}\n'
    )
    load = told(LARGE, "--rate", "2", "--workload", trace)["load"]
    assert (load["input_tokens"], load["output_tokens"]) == (2000, 75)


def test_the_tiny_pair_by_a_bench(tmp_path: Path) -> None:
    failed = fleet(TINY, "--rate", "1")
    assert failed.exit_code == 1
    assert "cannot be computed: engines of the torch backend have no data sheet" in str(failed.exception)
    assert "--fleet --measured results" in str(failed.exception.repair)  # type: ignore[union-attr]
    write(result(), tmp_path)
    found = told(TINY, "--rate", "4", "--measured", tmp_path, "--workload", "synthetic:input=50,output=50")
    assert found["with_drafts"]["gpus_per_replica"] == 1
    assert found["with_drafts"]["replicas"] >= 1
    page = fleet(TINY, "--rate", "4", "--measured", tmp_path, "--workload", "synthetic:input=50,output=50")
    assert "the engines share the processors with the server" in page.stdout
    others = fleet(
        TINY, "--rate", "4", "--measured", tmp_path, "--workload", "synthetic:input=500,output=130"
    )
    assert "was measured with prompts of 104 tokens on average, and these have 500" in others.stderr
    assert "answers of" not in others.stderr


def test_a_fleet_plan_names_the_missing_rate_and_requests_that_are_too_long(hub_cache: Path) -> None:
    failed = fleet(LARGE)
    assert failed.exit_code == 1
    assert "has no fleet.requests_per_second" in str(failed.exception)
    too_long = fleet(LARGE, "--rate", "1", "--workload", "synthetic:input=20000,output=10")
    assert "requests have 20,010 tokens on average, but engine.max_seq_len is 16,384" in str(
        too_long.exception
    )
    without = CliRunner().invoke(app, ["plan", str(LARGE), "--rate", "3"])
    assert (without.exit_code, "go with --fleet" in without.output) == (2, True)
