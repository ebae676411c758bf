"""`trtspec build` for servers of others, as a user runs it: nothing is converted, and little is written."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.fakes.heads import TARGET, write_head
from trtspec.backends.launch import read
from trtspec.cli.app import app


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


OPTIONS = {"vllm": ("--python", sys.executable), "sglang": ("--python", sys.executable)}


@pytest.fixture
def recipe(pair_recipe: Path) -> Path:
    """The pair for trtllm-serve, which reads a file beside its options."""
    text = pair_recipe.read_text().replace("backend: torch", "backend: tensorrt_llm_pytorch")
    pair_recipe.write_text(text.replace("gpu: none", "gpu: h100").replace(", dtype: float32", ""))
    return pair_recipe


def test_a_second_build_for_another_server_finds_nothing_to_do(recipe: Path) -> None:
    output = recipe.parent / "build"
    first = run("build", recipe, "--output", output, "--json")
    assert first.exit_code == 0, first.output
    assert json.loads(first.stdout)["ran"] == [
        "check pair",
        "copy tokenizer",
        "write llm_api_options.yaml",
        "write launch",
        "write manifest",
    ]
    again = run("build", recipe, "--output", output, "--json")
    assert json.loads(again.stdout)["ran"] == []

    launch = read(output)
    assert (launch.backend, launch.release) == ("tensorrt_llm_pytorch", "1.2.1")
    assert (output / "llm_api_options.yaml").read_text() == launch.files["llm_api_options.yaml"]
    manifest = json.loads((output / "manifest.json").read_text())
    assert manifest["backend"] == "tensorrt_llm_pytorch"
    for name, digest in manifest["outputs"].items():
        assert hashlib.sha256((output / name).read_bytes()).hexdigest() == digest
    weights = hashlib.sha256((recipe.parent / "target/model.safetensors").read_bytes()).hexdigest()
    assert manifest["models"]["target"]["files"]["model.safetensors"] == weights
    assert not list(output.rglob("*.safetensors"))


def test_a_text_is_as_long_as_the_server_is_told(recipe: Path) -> None:
    text = recipe.read_text().replace("tensorrt_llm_pytorch", "vllm, max_seq_len: 4096, extra_args: []")
    recipe.write_text(text)
    for command in ("check", "build"):
        refused = run(command, recipe)
        assert refused.exit_code == 1, command
        assert "the target supports" in refused.output + str(refused.exception)
    told = """[--hf-overrides, '{"max_position_embeddings": 4096}']"""
    recipe.write_text(text.replace("[]", told))
    for command in ("check", "build"):
        done = run(command, recipe)
        assert done.exit_code == 0, done.output


def test_a_change_is_written_and_nothing_else(recipe: Path) -> None:
    output = recipe.parent / "build"
    run("build", recipe, "--output", output)
    recipe.write_text(recipe.read_text() + "speculation: {num_draft_tokens: 3}\n")
    changed = run("build", recipe, "--output", output, "--json")
    assert json.loads(changed.stdout)["ran"] == [
        "write llm_api_options.yaml",
        "write launch",
        "write manifest",
    ]


@pytest.mark.parametrize(
    ("recipe_says", "asked", "is_built"),
    [
        ("dtype: float32", "vllm", True),
        ("dtype: float32", "sglang", True),
        ("dtype: float32", "torch", True),
        ("dtype: float32", "tensorrt_llm_pytorch", False),
        ("dtype: float16, build: {remove_input_padding: enable}", "vllm", False),
    ],
)
def test_rules_are_those_of_the_backend_that_is_asked_for(
    pair_recipe: Path, recipe_says: str, asked: str, is_built: bool
) -> None:
    """The recipe is one of TensorRT-LLM, which alone has no attention for float32."""
    text = pair_recipe.read_text().replace("engine: {backend: torch}\n", "").replace("none", "h100")
    pair_recipe.write_text(text.replace("model: ./target", f"model: ./target, {recipe_says}"))
    output = pair_recipe.parent / "build"
    assert run("plan", pair_recipe, "--output", output).exit_code == 1
    found = run("build", pair_recipe, "--backend", asked, "--output", output)
    assert (found.exit_code == 0) == is_built, found.output
    if is_built:
        served = run("deploy", pair_recipe, "--output", output, "--dry-run", *OPTIONS.get(asked, ()))
        assert served.exit_code == 0, served.output
        pair_recipe.write_text(pair_recipe.read_text() + "speculation: {num_draft_tokens: 2}\n")
        assert run("deploy", pair_recipe, "--output", output, "--dry-run").exit_code == 1


def test_a_backend_of_the_environment_that_there_is_not(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTSPEC_BACKEND", "tgi")
    refused = run("build", recipe, "--dry-run")
    assert "engine.backend: found 'tgi'" in str(refused.exception)


def test_a_dry_run_writes_nothing(recipe: Path) -> None:
    output = recipe.parent / "build"
    shown = run("build", recipe, "--output", output, "--dry-run")
    assert shown.exit_code == 0
    assert f"write launch -> {output}/launch.json" in shown.stdout
    assert not output.exists()


def test_a_draft_of_another_tokenizer_is_refused_before_anything_is_written(
    recipe: Path, llama_folder: Callable[..., Path]
) -> None:
    folder = llama_folder("draft", num_hidden_layers=1)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    words = tokenizer["model"]["vocab"]
    (a, first), (b, second) = list(words.items())[10:12]
    words |= {a: second, b: first}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    refused = run("build", recipe, "--output", recipe.parent / "build")
    assert refused.exit_code == 1
    assert not (recipe.parent / "build/launch.json").exists()


@pytest.mark.parametrize(
    "command",
    [
        ("build", "--store", "store"),
        ("build", "--container"),
        ("build", "--only", "target"),
        ("build", "--on", "slurm", "--store", "store"),
        ("convert",),
        ("rollout", "plan"),
        ("rollout", "off"),
    ],
)
def test_commands_that_need_an_engine_refuse_a_backend_that_builds_none(
    recipe: Path, command: tuple[str, ...]
) -> None:
    verb, *options = command
    sub = options.pop(0) if verb == "rollout" else None
    refused = run(verb, *([sub] if sub else []), recipe, *options)
    assert refused.exit_code == 1
    assert refused.exception
    assert "tensorrt_llm_pytorch loads the models itself" in str(refused.exception)


def test_there_is_nothing_to_build_on_a_gpu(recipe: Path) -> None:
    found = run("ci", "matrix", recipe)
    assert "tensorrt_llm_pytorch backend, nothing to build on a GPU" in found.output
    refused = run("store", "push", recipe.parent / "store", recipe)
    assert "no engine to store" in str(refused.exception)


def test_the_plan_shows_memory_and_what_to_expect(recipe: Path) -> None:
    shown = json.loads(run("plan", recipe, "--json").stdout)
    assert shown["backend"] == "tensorrt_llm_pytorch"
    assert shown["memory"]["gpu"] == "NVIDIA H100 80GB HBM3"
    assert shown["forecast"]["round_overhead"] == 0
    assert run("plan", recipe).exit_code == 0


class TestHead:
    """A draft that is a head of the target."""

    @pytest.fixture
    def recipe(self, tmp_path: Path, llama_folder: Callable[..., Path]) -> Path:
        llama_folder("target", **TARGET)
        write_head(tmp_path / "head", "speculators")
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(
            "name: head\ntarget: {model: ./target}\ndraft: {model: ./head}\nhardware: {gpu: h100}\n"
            "speculation: {method: eagle3}\nengine: {backend: vllm}\n"
        )
        return recipe

    def test_a_build_with_a_head_for_vllm_checks_it_and_names_its_files(self, recipe: Path) -> None:
        output = recipe.parent / "build"
        ran = json.loads(run("build", recipe, "--output", output, "--json").stdout)["ran"]
        assert ran == ["check head", "copy tokenizer", "write launch", "write manifest"]
        assert json.loads(run("build", recipe, "--output", output, "--json").stdout)["ran"] == []
        assert read(output).models == (f"{recipe.parent}/target", f"{recipe.parent}/head")
        manifest = json.loads((output / "manifest.json").read_text())
        assert sorted(manifest["models"]["draft"]["files"]) == ["config.json", "model.safetensors"]
        assert run("plan", recipe).exit_code == 0

    def test_one_of_another_target_is_refused(self, recipe: Path, llama_folder: Callable[..., Path]) -> None:
        llama_folder("target", **TARGET | {"hidden_size": 32})
        refused = run("build", recipe, "--output", recipe.parent / "build")
        assert refused.exit_code == 1
        assert "the head reads states of width 16, but the target's have width 32" in str(refused.exception)
        assert not (recipe.parent / "build/launch.json").exists()
