"""`trtspec distill` as a user calls it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command_line import trtspec
from trtspec.backends.table import load
from trtspec.measure.workloads.workload import Recorded, append_recorded


@pytest.fixture
def words(pair_recipe: Path, tmp_path: Path) -> tuple[object, ...]:
    """The command line of a short distillation."""
    answers = [
        Recorded(str(n), prompt_token_ids=(9, n), answer_token_ids=tuple(range(10, 30)))
        for n in range(20, 60)
    ]
    append_recorded(tmp_path / "answers.jsonl", answers)
    rest = ("--answers", tmp_path / "answers.jsonl", "--epochs", "2", "--learning-rate", "1e-2")
    return ("distill", pair_recipe, *rest, "--output", tmp_path / "out")


def test_distill_prints_the_change_in_acceptance_and_the_line_to_edit(
    words: tuple[object, ...], tmp_path: Path, pair_recipe: Path
) -> None:
    said = trtspec(*words)

    assert said.returncode == 0, said.stderr
    *table, folder = said.stdout.splitlines()
    assert folder == str(tmp_path / "out" / "draft")
    assert table[0].split() == ["accepted,", "held", "out", "before", "after", "change"]
    assert f"hint: in {pair_recipe}, line 3: draft.model: ./out/draft" in said.stderr
    assert "learned 36 answers of 720 tokens; 4 others were held out" in said.stderr
    assert "training: done" in said.stderr
    assert "{'loss'" not in said.stdout


def test_for_machines_and_with_a_recipe(words: tuple[object, ...], tmp_path: Path, pair_recipe: Path) -> None:
    new = tmp_path / "elsewhere" / "new.yaml"
    said = trtspec(*words, "--json", "--recipe-out", new)

    found = json.loads(said.stdout)
    assert found["folder"] == str(tmp_path / "out" / "draft")
    assert found["changes"] == {"draft.model": "./out/draft"}
    assert found["learned"] == {"answers": 36, "tokens": 720}
    assert found["loss"]["steps"] == 2 * 5
    assert set(found["acceptance"]) == {"before", "after", "per_token_ratio", "of_drafted_ratio"}
    draft = load(new).recipe.draft
    assert draft
    assert (draft.model, draft.dtype) == ("../out/draft", "float32")
    assert trtspec("check", new).returncode == 0
    assert trtspec("check", pair_recipe).returncode == 0


def test_a_head_and_the_recipe_that_drafts_with_it(
    words: tuple[object, ...], tmp_path: Path, llama_folder: Callable[..., Path]
) -> None:
    llama_folder("target", num_hidden_layers=4)
    new = tmp_path / "new.yaml"
    said = trtspec(*words, "--method", "eagle3", "--ttt-steps", "2", "--recipe-out", new, "--json")

    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout)
    assert found["folder"] == str(tmp_path / "out" / "eagle3")
    changes = {"draft.model": "./out/eagle3", "speculation.method": "eagle3", "draft.dtype": None}
    assert found["changes"] == changes, "a head has its target's"
    assert load(new).recipe.speculation.method.kind == "eagle3"
    checked = trtspec("check", new)
    assert "draft: a head, eagle3, speculators format" in checked.stdout
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ((), "give one of the two"),
        (("--workload", "a.txt", "--answers", "b.jsonl"), "give one of the two"),
        (("--answers", "b.jsonl", "--url", "http://127.0.0.1:1"), "are not requested again"),
    ],
)
def test_distill_refuses_options_that_exclude_each_other(
    options: tuple[str, ...], problem: str, pair_recipe: Path
) -> None:
    said = trtspec("distill", pair_recipe, *options)
    assert said.returncode == 2
    assert problem in " ".join(said.stderr.split())


def test_a_server_that_is_not_there(pair_recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("one\ntwo\nthree\n")
    said = trtspec(
        "distill", pair_recipe, "--workload", tmp_path / "prompts.txt", "--url", "http://127.0.0.1:1",
        "--output", tmp_path / "out",
    )  # fmt: skip
    assert said.returncode == 1
    assert "does not answer" in said.stderr
