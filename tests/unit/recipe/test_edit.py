"""Recipes changed in place: what is changed says so to PyYAML, and every other line stays as it was."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import pytest
import yaml

from trtspec.base.errors import RecipeError
from trtspec.recipe.edit import edit
from trtspec.recipe.shipped import STARTER

TINY = (Path(__file__).parents[3] / "recipes/tiny/recipe.yaml").read_text()
HERE = Path("recipe.yaml")


def changed_lines(before: str, after: str) -> list[str]:
    diff = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line for line in diff if line[0] in "+-"]


def test_a_value_changes_and_its_comment_stays() -> None:
    after = edit(TINY, {"engine.max_seq_len": 512}, HERE)
    assert changed_lines(TINY, after) == [
        "-   max_seq_len: 1024     # what the pair was trained for",
        "+   max_seq_len: 512     # what the pair was trained for",
    ]


def test_a_key_comes_behind_the_others_of_its_section() -> None:
    after = edit(TINY, {"draft.quantization.weights": "fp8", "speculation.method": "hybrid"}, HERE)
    assert changed_lines(TINY, after) == [
        "+   quantization:",
        "+     weights: fp8",
        "+   method: hybrid",
    ]
    assert after.index("weights: fp8") < after.index("speculation:")


def test_a_section_leaves_with_its_lines() -> None:
    after = edit(TINY, {"draft": None, "speculation.method": "ngram"}, HERE)
    removed = ["- draft:", "-   model: ./draft", "-   dtype: float32"]
    assert changed_lines(TINY, after) == [*removed, "+   method: ngram"]


@pytest.mark.parametrize(
    ("before", "changes", "after"),
    [
        ("a: {b: 1, c: 2}  # x\n", {"a.b": 5, "a.d": "e f"}, "a: {b: 5, c: 2, d: e f}  # x\n"),
        ("a: {b: 1, c: 2}\n", {"a.c": None}, "a: {b: 1}\n"),
        ("a: {b: 1, c: 2}\n", {"a.b": None}, "a: {c: 2}\n"),
        ("a: {}\n", {"a.b.c": True}, "a: {b: {c: true}}\n"),
        ("a:  # nothing yet\n  # b: 1\nc: 2\n", {"a.b": 3}, "a:  # nothing yet\n  b: 3\n  # b: 1\nc: 2\n"),
        ("a:\nc: 2", {"a": "x: y"}, "a: 'x: y'\nc: 2"),
        (
            "a:\n  b:\n    c: 1  # why\n    d: 2\n  # end\n",
            {"a.b": {"k": 1, "l": 2}},
            "a:\n  b: {k: 1, l: 2}\n  # end\n",
        ),
        ("a: |\n  text\n", {"b": 1}, "a: |\n  text\nb: 1\n"),
        ("a: 1", {"b.c.d": "5"}, "a: 1\nb:\n  c:\n    d: '5'"),
        ("a: 1\n", {"b.c": None}, "a: 1\n"),
        ("a: {b: 1}  # x\nc: 2\n", {"a.b": None}, "c: 2\n"),
        ("a: {\n  b: 1,\n}\nc: 2\n", {"a.b": None, "c": 3}, "c: 3\n"),
        ("a:\n  b:\n    c: 1  # why\nd: 2\n", {"a.b.c": None}, "d: 2\n"),
        ("a:\n  b:\n    c: 1\n  d: 2\n  # end\n", {"a.b.c": None}, "a:\n  d: 2\n  # end\n"),
        ("a:\n  b: 1\n  # c: 2\nd: 2\n", {"a.b": None}, "  # c: 2\nd: 2\n"),
    ],
)
def test_every_way_to_write_a_mapping(before: str, changes: dict[str, Any], after: str) -> None:
    assert edit(before, changes, HERE) == after


def test_comments_of_the_starter_all_stay() -> None:
    changes = {"speculation.num_draft_tokens": 5, "speculation.method": "hybrid", "draft.model": "./mine"}
    after = edit(STARTER, changes, HERE)
    comments = [line.partition("#")[2] for line in STARTER.splitlines() if "#" in line]
    assert [line.partition("#")[2] for line in after.splitlines() if "#" in line] == comments
    values = yaml.safe_load(after)
    assert values["speculation"] == {"max_draft_len": 8, "num_draft_tokens": 5, "method": "hybrid"}
    assert values["draft"] == {"model": "./mine"}


def test_an_edit_that_would_change_another_key_too_is_refused() -> None:
    shared = "target: &model {model: a}\ndraft: *model\n"
    with pytest.raises(RecipeError) as caught:
        edit(shared, {"draft.model": "b"}, HERE)
    assert caught.value.repair == "write it by hand: draft.model: b"


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("target: &model\n  model: a\ndraft: *model\nname: x\n", {"draft": {"model": "b"}, "engine.k": 1}),
        ("draft: &model {model: a}\ntarget: *model\nname: x\n", {"draft": None, "name": "y"}),
    ],
)
def test_a_change_that_leaves_no_yaml_for_the_next_one_is_refused(text: str, changes: dict[str, Any]) -> None:
    with pytest.raises(RecipeError) as caught:
        edit(text, changes, HERE)
    assert str(caught.value.repair).startswith("write it by hand: ")
