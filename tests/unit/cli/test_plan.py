"""What `trtspec plan` says beside the values and the steps."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.unit.measure.bench.results import result
from trtspec.cli.app import app
from trtspec.forecast.speedup import RoundCosts, speedup
from trtspec.measure.bench.result import write
from trtspec.recipe.loader import parse

RECIPES = Path(__file__).parents[3] / "recipes"
H200 = RECIPES / "llama-3.3-70b-h200.yaml"


def plan(*args: str | Path) -> Result:
    return CliRunner().invoke(app, ["plan", "-v", *map(str, args)])


def test_the_forecast_of_a_pair(hub_cache: Path) -> None:
    found = json.loads(plan(H200, "--json").stdout)["forecast"]
    assert [row["streams"] for row in found["streams"]] == [1, 2, 4, 8, 16, 32, 64]
    alone = found["streams"][0]
    assert alone["tokens_per_second"] == pytest.approx(1 / alone["step"])
    assert alone["limit"] == "bandwidth"
    assert [one["acceptance"] for one in alone["best"]] == [0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    # Eleven rows nearly hide behind the weights, so Leviathan's formula with the round's overhead is near.
    costs = RoundCosts(alone["draft_cost"], found["round_overhead"] / alone["step"])
    for one in alone["best"]:
        length, acceptance = one["num_draft_tokens"], one["acceptance"]
        assert one["speedup"] == pytest.approx(speedup([acceptance] * length, costs), rel=0.03)
        assert one["speedup_range"] == pytest.approx([one["speedup"] / 1.12, one["speedup"] * 1.12])
    verdicts = {one["verdict"]: one["speedup_range"] for row in found["streams"] for one in row["best"]}
    assert "yes" in verdicts
    assert all(low <= 1 <= high for verdict, (low, high) in verdicts.items() if verdict == "measure")
    gains = [[one["speedup"] for one in row["best"]] for row in found["streams"]]
    assert all(row == sorted(row) for row in gains)
    by_acceptance = zip(*gains, strict=True)
    assert all(list(column) == sorted(column, reverse=True) for column in by_acceptance)


def test_longer_texts_are_slower_and_fill_the_cache(hub_cache: Path) -> None:
    short, long = (
        json.loads(plan(H200, "--json", "--context", tokens).stdout)["forecast"]["streams"][-1]
        for tokens in ("512", "16384")
    )
    assert short["tokens_per_second"] > long["tokens_per_second"]
    assert (short["fits"], long["fits"]) == (True, False)
    assert "the KV cache does not hold 32 sequences of that length" in plan(H200, "--context", "16384").stdout
    assert plan(H200, "--context", "99999").exit_code == 2


def test_the_forecasts_schedule_is_a_recipe_that_says_that_it_was_not_measured(
    hub_cache: Path, tmp_path: Path
) -> None:
    file = tmp_path / "scheduled.yaml"
    found = json.loads(plan(H200, "--schedule", file, "--json").stdout)
    schedule = {int(least): length for least, length in found["schedule"].items()}
    assert not found["is_measured"]
    assert file.read_text().startswith("# schedule: NOT MEASURED: a forecast for sequences of 1,024 tokens")
    assert parse(file).recipe.speculation.schedule == schedule
    for level in found["levels"]:
        for gain in level["gains"].values():
            assert gain["low"] <= gain["value"] <= gain["high"]
    assert "NOT MEASURED" in plan(H200, "--schedule", file).stdout
    write(result(), tmp_path)
    measured = json.loads(plan(H200, "--schedule", file, "--measured", tmp_path, "--json").stdout)
    first = measured["levels"][0]["gains"]["4"]
    alone = json.loads(plan(H200, "--json").stdout)["forecast"]["streams"][0]["best"][0]
    low, high = alone["speedup_range"]
    error = (high / low) ** 0.5
    ends = [first["value"] / error, first["value"] * error]
    assert error > 1
    assert [first["low"], first["high"]] == pytest.approx(ends), "the forecast's error, of a known acceptance"
    assert "the acceptance that was measured" in measured["origin"]


def test_a_schedule_without_a_forecast_is_refused(tmp_path: Path) -> None:
    found = plan(RECIPES / "tiny/recipe.yaml", "--schedule", tmp_path / "s.yaml")
    assert found.exit_code == 1
    assert not (tmp_path / "s.yaml").exists()


def test_commands_alone_are_no_json() -> None:
    found = plan(H200, "--commands", "--json")
    assert (found.exit_code, found.stdout) == (2, "")


def test_the_table_and_the_rules(hub_cache: Path) -> None:
    printed = plan(H200).stdout
    assert "streams  tokens/s  at 0.4  at 0.5  at 0.6  at 0.7  at 0.8  at 0.9   from" in printed
    assert "it waits for bandwidth from 1 on" in printed
    assert "max_batch_size is 16: further streams wait in the queue" in printed
    assert "no          draft of 1/10 to 1/50 of the target: 1/57" in printed
    assert "worth a measurement: gains for one stream from acceptance" in printed


def test_plan_fills_in_verdicts_that_bench_measured(hub_cache: Path, tmp_path: Path) -> None:
    write(result(), tmp_path)
    filled_in = plan(H200, "--json", "--measured", tmp_path)
    assert "was measured for the recipe tiny, but this one is llama-3.3-70b-h200" in filled_in.stderr
    advice = json.loads(filled_in.stdout)["advice"]
    verdicts = {one["rule"]: one["verdict"] for one in advice["rules"]}
    assert verdicts["acceptance of 60% and more"] == "yes"
    assert verdicts["answers of over 100 tokens"] == "yes"
    assert verdicts["faster with drafts than without"] == "yes"
    assert verdicts["GPU busy for less than 50% of the time"] == "unmeasured"
    assert advice["words"] == result().verdict.words
    missing = plan(H200, "--measured", tmp_path / "nowhere")
    assert (missing.exit_code, "cannot be read" in str(missing.exception)) == (1, True)


def test_where_a_roll_out_stands_is_read(hub_cache: Path, tmp_path: Path) -> None:
    (tmp_path / "rollout.json").write_text('{"version": 1, "mode": "speculate", "share": 0.25}')
    said = json.loads(plan(H200, "--json", "--output", tmp_path).stdout)
    (found,) = [one for one in said["advice"]["checklist"] if one["rule"].startswith("rollout")]
    assert (found["verdict"], found["number"]) == ("yes", "at step 25 %")


@pytest.mark.parametrize(("suffix", "begin"), [(".svg", b"<?xml"), (".png", b"\x89PNG")])
def test_a_picture(hub_cache: Path, tmp_path: Path, suffix: str, begin: bytes) -> None:
    file, again = tmp_path / f"plan{suffix}", tmp_path / f"again{suffix}"
    for one in (file, again):
        assert plan(H200, "--picture", one).exit_code == 0
    assert file.read_bytes().startswith(begin)
    assert file.read_bytes() == again.read_bytes()
    if suffix == ".svg":
        assert all(words in file.read_text() for words in ("streams at once", "best draft length", "0.9"))


def test_no_picture_without_matplotlib(
    hub_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plan(H200, "--picture", tmp_path / "plan.gif").exit_code == 2
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    failed = plan(H200, "--picture", tmp_path / "plan.svg")
    assert failed.exit_code == 1
    assert "pip install '.[measure]'" in str(failed.exception.repair)  # type: ignore[union-attr]


def test_an_engine_without_a_data_sheet_has_no_forecast(tmp_path: Path) -> None:
    tiny = RECIPES / "tiny/recipe.yaml"
    found = json.loads(plan(tiny, "--json").stdout)
    assert found["forecast"] is None
    assert "torch" in found["no_forecast"]
    assert "no forecast: engines of the torch backend" in plan(tiny).stdout
    assert plan(tiny, "--picture", tmp_path / "plan.svg").exit_code == 1
