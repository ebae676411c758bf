"""`trtspec draft find` against a Hub with twenty candidates, of which seven fit."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.fakes.eagle_heads import write_eagle_for
from tests.fakes.heads import write_head_for
from tests.fakes.hub import COMMIT, Hub
from tests.support.command_line import trtspec
from trtspec.backends.table import loads

TARGET = "house/Llama-8B-Instruct"
FITTING = {
    "spec/Llama-8B-Instruct-speculator.eagle3": "eagle3",
    "spec/EAGLE3-Llama-8B-Instruct": "eagle3",
    "spec/Llama-8B-Instruct-DFlash": "dflash",
    "spec/Llama-8B-Instruct-DSpark": "dspark",
    "spec/EAGLE-Llama-8B-Instruct": "eagle",
    "house/Llama-1B": "draft_model",
    "other/Llama-DRAFT-0.5B": "draft_model",
}
REFUSED = {
    "spec/Llama-8B-Instruct-wide-eagle3": "reads states of width 32",
    "spec/Llama-8B-Instruct-eagle3-other-words": "made for a target with 24 tokens",
    "spec/Llama-8B-Instruct-eagle3-gated": "is a gated model",
    "spec/Llama-8B-Instruct-eagle3-pickled": "as pickle",
    "spec/Llama-8B-Instruct-medusa": "has no model.safetensors",
    "spec/Llama-8B-Instruct-eagle3-empty": "has no model.safetensors",
    "spec/Llama-8B-Instruct-eagle3-half": "is missing",
    "spec/Llama-8B-Instruct-p-eagle": "proposes all tokens at once",
    "spec/Llama-8B-Instruct-speculator.mtp": "belongs into the target's folder",
    "spec/Llama-8B-Instruct-eagle3-gpt": "has decoder layers of gpt2",
    "spec/Llama-8B-Instruct-eagle-lora": "LoRA adapter",
    "house/Llama-1B-wordless": "has no tokenizer.json",
    "other/Llama-DRAFT-70B": "parameters",
}
NO_CANDIDATES = (
    "other/Llama-1B",
    "spec/EAGLE3-Qwen3-8B",
    "other/Llama-8B-Instruct-eagle3-gguf",
    "house/BERT",
)


def edited(folder: Path, **config: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return folder


@pytest.fixture
def hub(tmp_path: Path, llama_folder: Callable[..., Path]) -> Iterator[Hub]:
    target = llama_folder("target", hidden_size=64, num_hidden_layers=6)
    small = llama_folder("small", num_hidden_layers=1, hidden_size=32)

    def head(name: str, kind: str = "specforge") -> Path:
        return write_head_for(target, tmp_path / name, kind)

    with Hub(target) as server:
        folders = server.folders
        folders[TARGET] = target
        made = iter(FITTING)
        folders[next(made)] = head("speculators", "speculators")
        folders[next(made)] = head("specforge")
        folders[next(made)] = head("dflash", "dflash")
        folders[next(made)] = head("dspark", "dspark")
        folders[next(made)] = write_eagle_for(target, tmp_path / "eagle")
        folders[next(made)] = small
        folders[next(made)] = llama_folder("foreign", num_hidden_layers=1, hidden_size=32, vocab_size=24)
        made = iter(REFUSED)
        folders[next(made)] = write_head_for(small, tmp_path / "wide", "specforge")
        few = llama_folder("few", hidden_size=64, vocab_size=24)
        folders[next(made)] = write_head_for(few, tmp_path / "words", "specforge")
        folders[next(made)] = head("gated")
        folders[next(made)] = pickled = head("pickled")
        (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
        folders[next(made)] = head("medusa", "medusa")
        folders[next(made)] = empty = tmp_path / "empty"
        empty.mkdir()
        (empty / "README.md").write_text("Coming soon.")
        folders[next(made)] = half = head("half")
        tensors = load_file(half / "model.safetensors")
        save_file(
            {name: each for name, each in tensors.items() if "fc" not in name}, half / "model.safetensors"
        )
        folders[next(made)] = edited(head("peagle", "speculators"), speculators_model_type="peagle")
        folders[next(made)] = edited(head("mtp", "speculators"), speculators_model_type="mtp")
        folders[next(made)] = edited(head("gpt"), model_type="gpt2")
        folders[next(made)] = lora = tmp_path / "lora"
        lora.mkdir()
        (lora / "adapter_config.json").write_text('{"base_model_name_or_path": "house/Llama-8B-Instruct"}')
        folders[next(made)] = wordless = llama_folder("wordless", num_hidden_layers=1)
        (wordless / "tokenizer.json").unlink()
        folders[next(made)] = llama_folder("large", hidden_size=128, num_hidden_layers=4)
        for rank, name in enumerate([*FITTING, *REFUSED, *NO_CANDIDATES]):
            is_draft = name.startswith("spec/")
            server.listed[name] = {
                "downloads": 1000 - rank,
                "tags": ["license:mit", "text-generation", *(["gguf"] if "gguf" in name else [])],
                "config": {"model_type": "bert" if "BERT" in name else "llama"},
                "safetensors": {"parameters": {"BF16": 100}, "total": 100},
            }
            if is_draft and "Qwen" not in name:
                server.listed[name]["tags"] += [f"base_model:{TARGET}", f"base_model:finetune:{TARGET}"]
        server.listed["spec/Llama-8B-Instruct-eagle3-gated"]["gated"] = "manual"
        yield server


Find = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def find(hub: Hub, tmp_path: Path) -> Find:
    """The command, which asks this Hub and has caches of its own."""

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        with hub.asked_here(tmp_path / "home", TRTSPEC_CACHE=str(tmp_path / "cache")):
            return trtspec("draft", "find", *words)

    return call


def test_of_twenty_candidates_the_seven_that_fit_are_found(hub: Hub, find: Find) -> None:
    done = find(TARGET, "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert {each["name"]: each["method"] for each in said["drafts"]} == FITTING
    reasons = {each["name"]: each["problem"] for each in said["refused"]}
    assert reasons.keys() == REFUSED.keys()
    for name, reason in REFUSED.items():
        assert reason in reasons[name], name
    weights = [asked for asked in hub.asked if "/resolve/" in asked and ".safetensors" in asked]
    assert weights
    assert all(asked.endswith("bytes=0-100000") for asked in weights)


def test_each_backend_that_is_said_to_run_a_draft_takes_its_lines(find: Find, tmp_path: Path) -> None:
    for each in json.loads(find(TARGET, "--json").stdout)["drafts"]:
        assert each["runs"]
        assert each["recipe"]["draft"] == {"model": each["name"], "revision": COMMIT}
        for backend in each["runs"]:
            recipe = {
                "name": "found",
                "target": {"model": TARGET},
                **each["recipe"],
                "engine": {"backend": backend},
                "hardware": {"gpu": "h100"},
            }
            loads(json.dumps(recipe).encode(), tmp_path / "recipe.yaml")
        assert each["refusals"].keys().isdisjoint(each["runs"])


def test_the_best_is_first_and_its_lines_are_printed(find: Find) -> None:
    done = find(TARGET, "--gpu", "h200", "--streams", "4")
    assert done.returncode == 0, done.stderr
    assert f"{TARGET}: 7 of 20 candidates fit" in done.stdout
    rows = [
        line.split()[0]
        for line in done.stdout.splitlines()
        if line.split()[:1] and line.split()[0] in FITTING
    ]
    assert rows[-1] == "other/Llama-DRAFT-0.5B"
    assert f"draft: {{model: {rows[0]}, revision: " in done.stdout
    assert "translated" in done.stdout


def test_without_the_hub_the_shipped_list_is_told(find: Find, hub: Hub) -> None:
    done = find("Qwen/Qwen3-8B", "--offline")
    assert done.returncode == 0, done.stderr
    assert "RedHatAI/Qwen3-8B-speculator.eagle3" in done.stdout
    assert "speculation: {method: eagle3}" in done.stdout
    assert hub.asked == []
    assert "leave out --offline" in find("nobody/knows-it", "--offline").stderr


def test_a_target_without_any_draft_ends_with_status_1(find: Find, hub: Hub) -> None:
    hub.listed.clear()
    assert find(TARGET).returncode == 1
