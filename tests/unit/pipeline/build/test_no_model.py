"""Folders that are something else than a model: each command says the same of them, and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

import trtspec
from trtspec.backends.table import load
from trtspec.base.errors import ModelError
from trtspec.models.source import TIES, read_source
from trtspec.pipeline.build.plan import PlanRequest, look_here
from trtspec.pipeline.inspection.folder import inspect
from trtspec.pipeline.machine.host import Host


def gguf(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    (folder / "model-Q4_K_M.gguf").write_bytes(b"GGUF")


def gguf_with_its_config(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.gguf")


def adapter(folder: Path) -> None:
    """As peft saves one."""
    (folder / "config.json").unlink()
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    (folder / "training_args.bin").write_bytes(b"pickle")
    content = {"peft_type": "LORA", "base_model_name_or_path": "meta-llama/Llama-3.1-8B", "r": 8}
    (folder / "adapter_config.json").write_text(json.dumps(content))


def headless(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")


def headless_by_default(folder: Path) -> None:
    headless(folder)
    content = json.loads((folder / "config.json").read_text())
    del content["tie_word_embeddings"]
    (folder / "config.json").write_text(json.dumps(content))


CASES: list[tuple[Callable[[Path], None], str, str]] = [
    (gguf, "holds its weights as GGUF (model-Q4_K_M.gguf)", "the model that it was made of"),
    (gguf_with_its_config, "as GGUF (model-00001-of-00002.gguf)", "the model that it was made of"),
    (adapter, "is a LoRA adapter of meta-llama/Llama-3.1-8B, not a model", "merge the two with peft"),
    (headless, "has no lm_head.weight, although the head is not the emb", "write tie_word_embeddings: true"),
    (headless_by_default, "has no lm_head.weight", "write tie_word_embeddings: true"),
]


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize(("spoil", "problem", "repair"), CASES, ids=[case[0].__name__ for case in CASES])
def test_plan_check_inspect_and_build_say_the_same(
    pair_recipe: Path, role: str, spoil: Callable[[Path], None], problem: str, repair: str
) -> None:
    """Nobody is told to download a file again, or to swap a headless target with its draft."""
    if role == "draft":
        text = (pair_recipe.parent / "draft/config.json").read_text()
        (pair_recipe.parent / "draft/config.json").write_text(
            text.replace('embeddings": true', 'embeddings": false')
        )
        tensors = load_file(pair_recipe.parent / "draft/model.safetensors")
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        save_file(tensors, pair_recipe.parent / "draft/model.safetensors")
    folder = pair_recipe.parent / role
    spoil(folder)
    said = set[tuple[str, str | None]]()
    for command in (
        lambda: trtspec.plan(pair_recipe),
        lambda: trtspec.build(pair_recipe, output=pair_recipe.parent / "out"),
        lambda: look_here(load(pair_recipe), Host({}), PlanRequest()),
        lambda: read_source(folder),
    ):
        with pytest.raises(ModelError) as caught:
            command()
        assert caught.value.subject == str(folder)
        said.add((caught.value.problem, caught.value.repair))
    try:
        said |= {(found.problem, found.repair) for found in inspect(str(folder)).findings if found.repair}
    except ModelError as error:
        said.add((error.problem, error.repair))
    ((found, told),) = said
    assert problem in found
    assert repair in str(told)


def test_a_file_of_llama_cpp_is_told_as_one(pair_recipe: Path) -> None:
    (pair_recipe.parent / "model.gguf").write_bytes(b"GGUF")
    pair_recipe.write_text(pair_recipe.read_text().replace("./target", "./model.gguf"))
    for command in (
        lambda: trtspec.plan(pair_recipe),
        lambda: look_here(load(pair_recipe), Host({}), PlanRequest()),
        lambda: inspect(str(pair_recipe.parent / "model.gguf")),
    ):
        with pytest.raises(ModelError, match=r"holds its weights as GGUF \(model.gguf\)"):
            command()


def test_a_whole_model_beside_other_files_is_a_model(pair_recipe: Path) -> None:
    """Hub repositories carry GGUF files, and folders of trainings their adapters, beside the model."""
    target = pair_recipe.parent / "target"
    (target / "model.gguf").write_bytes(b"GGUF")
    (target / "adapter_config.json").write_text("{}")
    assert trtspec.plan(pair_recipe).facts.target.source.folder == target


def test_which_heads_are_tied_unless_a_config_says_otherwise() -> None:
    """By transformers' classes."""
    assert {kind: AutoConfig.for_model(kind).tie_word_embeddings for kind in TIES} == TIES
