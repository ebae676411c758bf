"""The Python API in an interactive session: its names, and what an object shows of itself."""

from __future__ import annotations

from pathlib import Path

import trtspec
from trtspec.deployment.deployment import Deployment


def test_dir_shows_the_api_and_nothing_else() -> None:
    assert dir(trtspec) == ["Client", "Store", "__version__", "build", "deploy", "load_recipe", "plan"]


def test_an_object_of_the_api_shows_itself_in_a_line(pair_recipe: Path, tmp_path: Path) -> None:
    plan = trtspec.plan(pair_recipe, output=tmp_path / "build")
    shown = [
        repr(trtspec.load_recipe(pair_recipe)),
        repr(plan),
        repr(trtspec.build(pair_recipe, output=tmp_path / "build")),
        repr(trtspec.Store("s3://user:secret@engines/llama")),
        repr(trtspec.Client("http://127.0.0.1:9000/v1", api_key="secret")),
        repr(Deployment("pair", tmp_path / "build", "pair")),
    ]
    assert not [
        text for text in shown if "\n" in text or "secret" in text or len(text) > 80 + 2 * len(str(tmp_path))
    ]
    assert str(pair_recipe) in shown[1]
    assert str(plan.output) in shown[2]
    assert "127.0.0.1:9000" in shown[4]
