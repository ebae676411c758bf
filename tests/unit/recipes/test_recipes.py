"""The recipes that come with trtspec, against the models that they name."""

from __future__ import annotations

import json
import os
import re
import socket
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from tests.fakes.published import COMMIT
from trtspec.backends.table import load
from trtspec.base.errors import ModelError
from trtspec.checkpoint.convert import rank_sizes
from trtspec.cli.app import app
from trtspec.cli.terminal.output import out
from trtspec.cluster.kubernetes.recipe_values import planned_build
from trtspec.models.published import CONFIGS, published
from trtspec.models.source import read_source
from trtspec.pipeline.build.plan import make_plan
from trtspec.recipe import gpus

FOLDER = Path(__file__).parents[3] / "recipes"
RECIPES = sorted(FOLDER.glob("*.yaml"))
BYTES = {"BF16": 2, "F8_E4M3": 1}

every_recipe = pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)


def run(*args: str | Path) -> Result:
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    assert result.exit_code == 0, result.output
    return result


def test_the_recipes_that_people_look_for() -> None:
    assert [path.stem for path in RECIPES] == [
        "llama-3.1-405b-8xh200",
        "llama-3.1-8b-h100",
        "llama-3.3-70b-2xh100",
        "llama-3.3-70b-h200-ngram",
        "llama-3.3-70b-h200",
        "mistral-large-2xh200",
        "mistral-small-h100",
        "qwen2.5-32b-h100",
        "qwen2.5-72b-h200",
        "qwen3-32b-h100",
    ]


@every_recipe
def test_a_recipe_fits_its_models(path: Path, hub_cache: Path) -> None:
    assert load(path).recipe.name == path.stem
    report = json.loads(run("check", path, "--json").stdout)
    assert (report["ok"], report["not_checked"]) == (True, {})
    assert not [finding for finding in report["findings"] if finding["severity"] == "error"]
    fits = ", and the pair fits" if load(path).recipe.draft else ""
    assert run("check", path).stdout.endswith(f"the recipe is valid{fits}\n")


@pytest.mark.parametrize("name", ["qwen2.5-72b-h200", "qwen2.5-32b-h100"])
def test_vocabularies_padded_otherwise_are_told(name: str, hub_cache: Path) -> None:
    (finding,) = json.loads(run("check", FOLDER / f"{name}.yaml", "--json").stdout)["findings"]
    assert finding["subject"] == "padded vocabulary"
    assert finding["problem"] == "152064 rows in the target's embedding, 151936 in the draft's"


@pytest.fixture
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without network, models, token and TensorRT-LLM."""

    def unreachable(*_: Any, **__: Any) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, "no network")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    monkeypatch.setattr(socket.socket, "connect", unreachable)


@every_recipe
def test_a_laptop_plans_it_and_says_what_stands_in_the_recipe(path: Path, laptop: None) -> None:
    lines = run("plan", path, "-v").stdout.splitlines()
    models = [model.model for model in load(path).recipe.models.values()]
    fits, expected, words, reckoned, following = lines[: lines.index("")]
    assert fits.startswith(f"{path.stem} fits: weights and workspace take ")
    assert re.match(r"expected of one stream: \d+ tokens/s without drafts, \d+ to \d+ with them", expected)
    assert words.startswith("worth a measurement: gains for one stream from acceptance ")
    unread = "is not complete on this machine, and the Hub cannot be reached"
    are, each = ("are", "each") if len(models) > 1 else ("is", "it")
    assert reckoned == f"{' and '.join(models)} {are} computed from published sizes, since {each} {unread}"
    assert following == f"next: trtspec build {path} --container"
    start = next(number for number, line in enumerate(lines) if line.startswith("memory "))
    table = "".join(f"#   {line}\n" for line in lines[start : lines.index("", start)])
    assert f"# What `trtspec plan -v` says of the memory:\n{table}name: " in path.read_text()


@every_recipe
def test_the_budget_is_right(path: Path, hub_cache: Path) -> None:
    recipe = yaml.safe_load(path.read_text())
    memory = json.loads(run("plan", path, "--json").stdout)["memory"]
    assert memory["total"] == int(gpus.GPUS[recipe["hardware"]["gpu"]].memory_gib * (1 << 30))
    taken = per_token = 0
    for role in load(path).recipe.models:
        folder = hub_cache / f"models--{recipe[role]['model'].replace('/', '--')}/snapshots" / COMMIT
        config = json.loads((folder / "config.json").read_text())
        ranks = recipe[role].get("parallel", {}).get("tensor", 1)
        quantization = recipe[role].get("quantization", {"weights": "none", "kv_cache": "none"})
        assert memory[role]["weights"] == weights(folder, config, ranks, quantization["weights"])
        width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        item = 1 if quantization["kv_cache"] == "fp8" else 2
        cache = 2 * config["num_hidden_layers"] * (config["num_key_value_heads"] // ranks) * width * item
        assert memory[role]["kv_per_token"] == cache
        taken += memory[role]["weights"] + memory[role]["workspace"]
        per_token += cache
    assert memory["left"] == int(0.9 * (memory["total"] - taken))
    engine, speculation = recipe["engine"], recipe["speculation"]
    length = engine["max_seq_len"] + speculation["max_draft_len"]
    assert memory["requests"] == memory["left"] // per_token // length
    assert memory["problem"] is None
    assert memory["requests"] >= engine["max_batch_size"]


def test_who_has_no_token_is_told_so_with_the_plan(laptop: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def gated(repo_id: str, *_: Any) -> None:
        raise ModelError(repo_id, "is a gated model, and this machine has no access to it", "hf auth login")

    monkeypatch.setattr("trtspec.models.download.check_access", gated)
    said = run("plan", FOLDER / "llama-3.1-8b-h100.yaml", "--json").stdout
    gist = "is a gated model, and this machine has no access to it"
    models = {"target": "nvidia/Llama-3.1-8B-Instruct-FP8", "draft": "meta-llama/Llama-3.2-1B-Instruct"}
    assert json.loads(said)["not_read"] == {role: f"{name}: {gist}" for role, name in models.items()}


def test_no_step_that_runs_takes_a_model_from_the_table(laptop: None, tmp_path: Path) -> None:
    recipe = FOLDER / "llama-3.1-8b-h100.yaml"
    failed = CliRunner().invoke(app, ["convert", str(recipe), "--output", str(tmp_path / "made")])
    assert "the Hub cannot be reached" in str(failed.exception)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_published_model_has_the_weights_that_transformers_gives_it(name: str, hub_cache: Path) -> None:
    read = read_source(hub_cache / f"models--{name.replace('/', '--')}/snapshots" / COMMIT)
    known = published(name)
    assert known is not None
    assert {key: (tensor.dtype, tensor.shape) for key, tensor in known.tensors.items()} == {
        key: (tensor.dtype, tensor.shape)
        for key, tensor in read.tensors.items()
        if not key.endswith("_scale")
    }
    assert (known.scheme, known.dtype, known.max_position) == (read.scheme, read.dtype, read.max_position)
    assert published(name, COMMIT) is None


def test_the_tests_of_clusters_know_the_engines(hub_cache: Path) -> None:
    """`tests/data/stored_engines.json` is what the plan says of the engines that a store would have."""
    known = json.loads((FOLDER.parent / "tests/data/stored_engines.json").read_text())
    for path in (*RECIPES, FOLDER / "tiny/recipe.yaml"):
        made = make_plan(path, progress=out.watch)
        resolved, planned = made.resolved, planned_build(made).engines
        for role, engine in resolved.engines.items():
            source, options = engine.model.source, engine.options
            sizes = rank_sizes(source, engine.checkpoint)
            item = 4 if engine.checkpoint.dtype == "float32" else 2
            per_layer = 2 * source.num_key_value_heads * source.head_size * item
            # The torch backend verifies without logits.
            verified = options.max_batch_size if engine.runner.name == "tensorrt_llm" else 0
            expected = {
                "ranks": len(sizes),
                "weights": sum(sizes),
                "kv_per_token": source.num_hidden_layers * per_layer,
                "max_batch_size": options.max_batch_size,
                "max_seq_len": options.max_seq_len,
                "draft_logits": verified * options.max_draft_len * source.vocab_size * 4,
            }
            if os.environ.get("UPDATE_GOLDEN"):
                known.setdefault(path.stem if path in RECIPES else "tiny", {})[role.value] = expected
            assert known[resolved.loaded.recipe.name][role.value] == expected == asdict(planned[role])
    if os.environ.get("UPDATE_GOLDEN"):
        (FOLDER.parent / "tests/data/stored_engines.json").write_text(json.dumps(known, indent=2) + "\n")


def weights(folder: Path, config: dict[str, Any], ranks: int, precision: str) -> int:
    """Bytes of one tensor-parallel rank, from the header of what is published."""
    file = folder / "model.safetensors"
    with file.open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    total = 0
    for name, entry in header.items():
        if name.endswith("_scale"):
            continue
        size = BYTES[entry["dtype"]]
        for length in entry["shape"]:
            size *= length
        if precision == "fp8" and entry["dtype"] == "BF16" and "_proj.weight" in name:
            size //= 2
        # An engine has its own copy of an embedding that is the head as well.
        copies = 2 if config.get("tie_word_embeddings") and "embed_tokens" in name else 1
        total += copies * (size // ranks if len(entry["shape"]) == 2 else size)
    return total


def test_the_table_of_the_readme(hub_cache: Path) -> None:
    rows = []
    for path in RECIPES:
        recipe = load(path).recipe
        memory = json.loads(run("plan", path, "--json").stdout)["memory"]
        used = sum(memory[role]["weights"] for role in recipe.models) / (1 << 30)
        models = [model.model.partition("/")[2] for model in recipe.models.values()]
        if recipe.draft is None:
            models.append(f"none: {recipe.speculation.method.kind}")
        rows.append(
            f"| [{path.stem}]({path.name}) | {recipe.hardware.count} x {recipe.hardware.gpu.upper()} "
            f"| {models[0]} | {models[1]} | {recipe.speculation.max_draft_len} | {used:.1f} GiB "
            f"| {memory['requests']} of {memory['tokens_per_request']:,} |"
        )
    readme = (FOLDER / "README.md").read_text().splitlines()
    assert [line for line in readme if line.startswith("| [")] == rows
