"""`trtspec deploy` before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from trtspec.cli.app import app


def run(*words: object) -> Result:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result


def test_a_recipe_that_has_changed_since_is_told(pair_recipe: Path, tmp_path: Path) -> None:
    built = tmp_path / "out"
    run("build", pair_recipe, "--output", built)
    assert "has changed" not in run("deploy", pair_recipe, "--output", built, "--dry-run").stderr
    pair_recipe.write_text(pair_recipe.read_text() + "\nspeculation: {num_draft_tokens: 2}\n")
    assert "pair.yaml has changed since" in run("deploy", pair_recipe, "--output", built, "--dry-run").stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"version": 1, "mode": "speculate", "share": 0}', "its roll-out is at step off"),
        ('{"version": 1, "mode": "shadow", "share": 0.5}', "its roll-out is at step shadow"),
        ('{"version": 1, "mode": "speculate", "share": 1}', ""),
        ("{", "its roll-out's file cannot be read"),
    ],
)
def test_a_roll_out_that_was_left_is_told(pair_recipe: Path, tmp_path: Path, text: str, said: str) -> None:
    built = tmp_path / "out"
    run("build", pair_recipe, "--output", built)
    (built / "rollout.json").write_text(text)
    told = run("deploy", pair_recipe, "--output", built, "--dry-run").stderr
    assert said in told
    assert bool(said) == ("roll-out" in told)


def test_a_roll_out_of_another_place_is_told(
    pair_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, file = tmp_path / "out", tmp_path / "mounted" / "rollout.json"
    run("build", pair_recipe, "--output", built)
    file.parent.mkdir()
    file.write_text('{"version": 1, "mode": "speculate", "share": 0}')
    monkeypatch.setenv("TRTSPEC_ROLLOUT", str(file))
    said = run("deploy", pair_recipe, "--output", built, "--dry-run")
    assert "its roll-out is at step off" in said.stderr
    assert f"TRTSPEC_ROLLOUT={file}" in said.stdout
