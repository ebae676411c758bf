"""A recipe whose draft is layers of its target, from `check` to a repository.

transformers and PyTorch are real; `trtllm-build` is a stand-in.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.fakes.gpu_machine import H200, GpuMachine
from tests.support.command_line import trtspec
from trtspec.backends.launch import read

TORCH = "engine: {backend: torch, max_batch_size: 4, max_seq_len: 128}\nhardware: {gpu: none}\n"
TRTLLM = "engine: {release: 1.2.1, max_batch_size: 4, max_seq_len: 128}\nhardware: {gpu: h200}\n"
SERVER = "engine: {{backend: {}, max_seq_len: 128}}\nhardware: {{gpu: h100}}\n"
SEARCH = "auto, layer_search: {dataset: texts.jsonl, samples: 3, max_tokens: 8, tries: 12}"


class Bench:
    """A recipe on a machine that builds it; its target has five layers."""

    def __init__(self, folder: Path, target: Path) -> None:
        self.folder, self.target = folder, target
        self.machine = GpuMachine(folder / "machine")
        (folder / "texts.jsonl").write_text("".join(f'{{"text": "{text}"}}\n' for text in ("ab", "cde", "f")))

    def write(self, layers: str, engine: str = TORCH, more: str = "") -> None:
        (self.folder / "recipe.yaml").write_text(
            f"name: own\ntarget: {{model: ./target}}\ndraft: {{layers_of_target: {layers}}}\n"
            f"speculation: {{max_draft_len: 4}}\n{more}{engine}"
        )

    def run(self, *words: str, status: int = 0) -> tuple[str, str]:
        result = trtspec(*words, folder=self.folder, environment=self.machine.environment)
        assert result.returncode == status, result.stderr
        return result.stdout, result.stderr

    def built(self, *words: str) -> tuple[dict[str, Any], str]:
        output, said = self.run("build", "recipe.yaml", "--output", "out", "--json", *words)
        return json.loads(output), said

    def manifest(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folder / "out/manifest.json").read_text())
        return content

    def kept(self) -> list[int]:
        """Returns the layers of the target whose weights the draft's checkpoint has, in its order."""
        target, draft = (self.folder / f"out/{role}/checkpoint" for role in ("target", "draft"))
        return same_layers(target, draft, "rank0.safetensors", "transformer.layers.{}.mlp.proj.weight")

    def served(self) -> list[int]:
        """Returns the same of the model that another engine's server loads as its draft."""
        draft = self.folder / "out/draft/model"
        return same_layers(self.target, draft, "model.safetensors", "model.layers.{}.mlp.down_proj.weight")


def same_layers(target: Path, draft: Path, file: str, name: str) -> list[int]:
    ours, theirs = (load_file(folder / file) for folder in (draft, target))
    return [
        of
        for layer in range(json.loads((draft / "config.json").read_text())["num_hidden_layers"])
        for of in range(5)
        if torch.equal(ours[name.format(layer)], theirs[name.format(of)])
    ]


@pytest.fixture
def bench(tmp_path: Path, llama_folder: Callable[..., Path]) -> Bench:
    return Bench(tmp_path, llama_folder("target", num_hidden_layers=5, initializer_range=0.1))


def test_layers_that_the_recipe_names_are_a_draft_like_any_other(bench: Bench) -> None:
    """In the bls layout an engine is a copy, as it is for TensorRT-LLM."""
    bench.write("[0, 3, 4]", more="serving: {layout: bls}\n")
    said, _ = bench.run("check", "recipe.yaml")
    assert "3 x 32" in said
    values = json.loads(bench.run("plan", "recipe.yaml", "--json")[0])["values"]
    (told,) = [value for value in values if value["key"] == "draft.layers_of_target"]
    assert (told["value"], told["reason"].partition(":")[0]) == (
        "0, 3, 4",
        "3 of 5 layers, 65% of the weights",
    )
    ran = bench.built()[0]["ran"]
    assert "check pair" not in ran
    assert {"convert draft", "verify draft", "build draft"} <= set(ran)
    assert bench.kept() == [0, 3, 4]
    assert bench.built()[0]["ran"] == []
    bench.write("[0, 2, 4]", more="serving: {layout: bls}\n")
    assert "convert draft" in (ran := bench.built()[0]["ran"])
    assert "convert target" not in ran
    assert bench.kept() == [0, 2, 4]


def test_tensorrt_llm_builds_them_as_an_engine(bench: Bench) -> None:
    bench.machine.gpus(H200)
    bench.machine.tensorrt_llm()
    bench.write("[0, 3, 4]", TRTLLM)
    ran = bench.built()[0]["ran"]
    assert {"convert draft", "verify draft", "build draft", "write repository"} <= set(ran)
    assert bench.kept() == [0, 3, 4]
    config = json.loads((bench.folder / "out/draft/engine/config.json").read_text())
    assert config["pretrained_config"]["num_hidden_layers"] == 3


def test_layers_are_chosen_once_by_the_texts_of_the_recipe(bench: Bench) -> None:
    bench.write(SEARCH, more="serving: {layout: bls}\n")
    content, said = bench.built()
    assert content["ran"][2] == "choose layers draft"
    chosen = json.loads((bench.folder / "out/draft/layers.json").read_text())
    assert len(chosen["layers"]) == 4  # all but 45 % of the three between the first and the last
    assert chosen["provenance"]["dataset"] == "texts.jsonl"
    assert bench.kept() == chosen["layers"]
    assert bench.manifest()["layers"]["draft"]["layers"] == chosen["layers"]
    assert f"draft: layers {', '.join(map(str, chosen['layers']))} of 5 say what the target says in" in said
    assert "trtspec's own texts" not in said
    assert bench.built()[0]["ran"] == []
    (bench.folder / "texts.jsonl").write_text('{"text": "another"}\n')
    assert {"choose layers draft", "convert draft"} <= set(bench.built()[0]["ran"])


def test_a_server_of_others_loads_them_as_a_model(bench: Bench) -> None:
    bench.write("[0, 3, 4]", SERVER.format("vllm"))
    assert bench.built()[0]["ran"] == [
        "check model",
        "copy tokenizer",
        "write layers draft",
        "write launch",
        "write manifest",
    ]
    assert bench.built()[0]["ran"] == []
    assert bench.served() == [0, 3, 4]
    launch, draft = read(bench.folder / "out"), str(bench.folder / "out/draft/model")
    assert launch.models == (str(bench.target), draft)
    assert json.loads(launch.arguments[-1])["model"] == draft
    assert "draft/model/model.safetensors" in bench.manifest()["outputs"]
    bench.write("[0, 4]", SERVER.format("vllm"))
    # How many bytes the models have is in the launch too.
    assert bench.built()[0]["ran"] == ["write layers draft", "write launch", "write manifest"]
    assert bench.served() == [0, 4]


def test_a_server_of_others_has_layers_that_were_chosen_for_a_cache_of_their_own(bench: Bench) -> None:
    bench.write(SEARCH, SERVER.format("sglang"))
    assert bench.built()[0]["ran"][2:4] == ["choose layers draft", "write layers draft"]
    chosen = json.loads((bench.folder / "out/draft/layers.json").read_text())
    assert not chosen["provenance"]["shares_cache"]
    assert bench.served() == chosen["layers"] == bench.manifest()["layers"]["draft"]["layers"]


@pytest.mark.parametrize("backend", ["sglang", "tensorrt_llm_pytorch"])
def test_every_server_is_told_where_they_are(bench: Bench, backend: str) -> None:
    bench.write("[0, 4]", SERVER.format(backend))
    bench.built()
    launch = read(bench.folder / "out")
    told = "\n".join([*launch.arguments, *launch.files.values()])
    assert str(bench.folder / "out/draft/model") in told


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        ("[0, 5]", "has no layer 5: its layers are 0 to 4"),
        ("auto, layer_search: {count: 5}", "has 5 layers, so a draft of 5 layers would leave none out"),
        ("[0], dtype: float32", "draft.dtype: the draft is layers of the target, and has its dtype"),
        ("[0], model: ./other", "draft.model: the draft is layers of the target, and has its model"),
        ("[0], layer_search: {count: 2}", "nothing is searched for: layers_of_target names the layers"),
        ("[2, 1]", "layers are written in their order, each once"),
        ("some", "found 'some'; allowed: auto, or the numbers of layers, from 0 on"),
        ("[]", "found []; allowed: auto, or the numbers of layers, from 0 on"),
    ],
)
def test_impossible_layers_of_a_target_are_refused_with_a_repair(bench: Bench, draft: str, said: str) -> None:
    bench.write(draft)
    assert said in bench.run("plan", "recipe.yaml", status=1)[1]


def test_layers_of_the_target_are_not_trained(bench: Bench) -> None:
    bench.write("[0, 3, 4]")
    said = bench.run("distill", "recipe.yaml", "--workload", "texts.jsonl", status=1)[1]
    assert "its draft is layers of the target, which must not change" in said
