from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.made_up_method import NAME
from tests.support.servers_of_others import SERVERS
from trtspec.backends.table import backends
from trtspec.methods.table import METHODS

HOUSE = Path(__file__).parents[3]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_needs_no_option_but_its_name(name: str) -> None:
    assert METHODS[name](kind=name).kind == name


def test_a_draft_in_an_engine_is_of_a_method_that_the_backend_runs() -> None:
    inside = [(backend, name) for backend in backends() for name in backend.engine_drafts]
    assert inside
    assert [name for backend, name in inside if backend.refusal(name, None)] == []


class TestAMadeUpMethod:
    """One module and one line of the table: nothing else of trtspec knows it."""

    @pytest.fixture
    def recipe(self, pair_recipe: Path) -> Path:
        text = pair_recipe.read_text().replace("draft: {model: ./draft, dtype: float32}\n", "")
        pair_recipe.write_text(text + f"speculation: {{method: {{kind: {NAME}, clarity: 5}}}}\n")
        return pair_recipe

    def run(self, *words: object) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "tests.fakes.made_up_method", *map(str, words)]
        return subprocess.run(line, cwd=HOUSE, capture_output=True, text=True, check=False)

    def test_is_checked(self, recipe: Path) -> None:
        said = self.run("check", recipe)
        assert (said.returncode, said.stderr) == (0, "")
        assert said.stdout.endswith("the recipe is valid\n")

    def test_is_refused_with_the_line_of_an_option_that_is_wrong(self, recipe: Path) -> None:
        recipe.write_text(recipe.read_text().replace("clarity: 5", "clarity: 50"))
        said = self.run("check", recipe)
        assert said.returncode == 1
        assert "5: speculation.method.clarity" in said.stderr

    @pytest.mark.parametrize("backend", SERVERS)
    def test_is_refused_for_a_server_that_has_no_such_method(self, recipe: Path, backend: str) -> None:
        text = recipe.read_text().replace("torch", backend).replace("gpu: none", "gpu: h200")
        recipe.write_text(text)
        said = self.run("check", recipe)
        assert said.returncode == 1
        assert f"{backend} does not run {NAME}" in said.stderr

    def test_is_planned_with_its_options(self, recipe: Path) -> None:
        said = self.run("plan", recipe, "--json")
        assert said.returncode == 0, said.stderr
        choices = {choice["key"]: choice for choice in json.loads(said.stdout)["values"]}
        assert choices["speculation.method"]["value"] == NAME
        assert choices["speculation.method.clarity"]["value"] == 5

    def test_is_built_without_a_draft(self, recipe: Path) -> None:
        said = self.run("build", recipe, "--dry-run")
        assert said.returncode == 0, said.stderr
        steps = [line.split(" -> ")[0] for line in said.stdout.splitlines() if line.startswith("run ")]
        assert "run   build target" in steps
        assert "run   write repository" in steps
        assert "run   build draft" not in steps

    def test_has_its_row_in_the_page_of_methods(self) -> None:
        said = self.run("methods.md")
        rows = [line for line in said.stdout.splitlines() if line.startswith(f"| `{NAME}` |")]
        assert [row.count("yes") for row in rows] == [2]
