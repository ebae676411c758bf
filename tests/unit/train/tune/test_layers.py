"""Drafts of the target's layers: of the target that the recipe has, with its weights."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.fakes.hub import Hub
from tests.support.command_line import trtspec
from trtspec.measure.workloads.workload import Recorded, append_recorded

EMBEDDING = "model.embed_tokens.weight"


@pytest.mark.usefixtures("cheap")
def test_layers_are_those_of_the_target_that_the_recipe_has_now(
    pair_recipe: Path, prompts: Path, llama_folder: Callable[..., Path]
) -> None:
    """Those of a model that comes back are still there."""
    folder, text, names = pair_recipe.parent, pair_recipe.read_text(), list[str]()
    other = llama_folder("another", hidden_size=64)
    for now in (folder / "target", other, folder / "target"):
        pair_recipe.write_text(text.replace("./target", f"./{now.name}"))
        words = ("--workload", prompts, "--work", folder / "work", "--json", "--longest", 1)
        done = trtspec("tune", pair_recipe, *words, "--method", "draft_model", "--layers", "1")
        by_name = {each["candidate"]: each["draft"] for each in json.loads(done.stdout)["standings"]}
        made = Path(by_name["layers 0 of the target"])
        names.append(made.name)
        layer, whole = (load_file(path / "model.safetensors") for path in (made, now))
        assert torch.equal(layer[EMBEDDING], whole[EMBEDDING])
    assert names[0] == names[2] != names[1]


@pytest.mark.sweep
def test_layers_of_a_hub_model_have_its_weights_where_nothing_else_reads_them(
    h200_recipe: Path, tmp_path: Path
) -> None:
    """A plan says what rounds cost, and no draft of the recipe's own is compared with its target."""
    text = h200_recipe.read_text().replace("draft: {model: ./draft, dtype: float16}\n", "")
    h200_recipe.write_text(text.replace("./target", "owner/model") + "speculation: {method: ngram}\n")
    answers = tmp_path / "answers.jsonl"
    append_recorded(answers, [Recorded(str(n), prompt=f"{n}", text="abc" * 9) for n in range(2)])
    words = ("--answers", answers, "--method", "draft_model", "--layers", "1", "--work", tmp_path / "work")
    with Hub(tmp_path / "target") as hub:
        # huggingface_hub reads its environment once for each process.
        environment = {**hub.environment(tmp_path / "home"), "TRTSPEC_CACHE": str(tmp_path / "cache")}
        command = [sys.executable, "-m", "trtspec", "tune", *map(str, (h200_recipe, *words))]
        subprocess.run(command, env=environment, capture_output=True, timeout=600, check=True)
    (made,) = (tmp_path / "work").glob("layers-*/model.safetensors")
    whole = load_file(tmp_path / "target" / "model.safetensors")
    assert torch.equal(load_file(made)[EMBEDDING], whole[EMBEDDING])
