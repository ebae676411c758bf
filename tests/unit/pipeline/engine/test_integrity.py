from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trtspec.base.errors import EngineError
from trtspec.cli.app import app
from trtspec.pipeline.engine.manifest import check_unchanged


@pytest.fixture
def built(pair_recipe: Path) -> Path:
    output = pair_recipe.with_name("built")
    result = CliRunner().invoke(app, ["build", str(pair_recipe), "--output", str(output)])
    assert result.exit_code == 0, result.exception
    return output


def test_a_moved_build_still_counts_as_unchanged(built: Path) -> None:
    check_unchanged(built)
    check_unchanged(built.rename(built.with_name("moved")))


@pytest.mark.parametrize(
    "name", ["tokenizer/tokenizer.json", "target/engine/config.json", "draft/engine/config.json"]
)
def test_a_build_with_a_changed_file_is_not_deployed(built: Path, pair_recipe: Path, name: str) -> None:
    file = built / name
    file.write_text(json.dumps(json.loads(file.read_text())))
    result = CliRunner().invoke(app, ["deploy", str(pair_recipe), "--output", str(built)])
    assert isinstance(result.exception, EngineError)
    assert str(file) in str(result.exception)
    assert "has changed since the build" in str(result.exception)


def test_a_build_without_a_manifest_is_not_judged(built: Path, tmp_path: Path) -> None:
    (built / "manifest.json").unlink()
    shutil.copyfile(built / "target/engine/config.json", built / "draft/engine/config.json")
    check_unchanged(built)


def test_a_file_that_differs_from_the_manifest_counts_as_changed(built: Path) -> None:
    manifest = json.loads((built / "manifest.json").read_text())
    manifest["outputs"]["tokenizer/tokenizer.json"] = "0" * 64
    (built / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(EngineError, match=r"tokenizer\.json: has changed since the build"):
        check_unchanged(built)
