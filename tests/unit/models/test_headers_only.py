"""Plans of models on the Hub: as of the same models here, and without their weights."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fakes.heads import write_head_for
from tests.fakes.hub import COMMIT, Hub
from tests.support.command_line import trtspec
from trtspec.base.errors import ModelError
from trtspec.base.progress import no_progress
from trtspec.checkpoint.convert import convert
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.models import download
from trtspec.models.source import read_source
from trtspec.pipeline.steps.convert import run as run_step

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def hub(pair_recipe: Path) -> Iterator[Hub]:
    """Has the recipe's target."""
    with Hub(pair_recipe.parent / "target") as server:
        yield server


@pytest.fixture
def recipe(pair_recipe: Path, hub: Hub) -> Path:
    file = pair_recipe.with_name("hub.yaml")
    file.write_text(pair_recipe.read_text().replace("./target", "owner/model"))
    return file


@pytest.fixture
def run(hub: Hub, tmp_path: Path) -> Run:
    """`trtspec`, which asks this Hub and has caches of its own."""

    def call(*args: object, **environment: str) -> subprocess.CompletedProcess[str]:
        with hub.asked_here(tmp_path / "home", TRTSPEC_CACHE=str(tmp_path / "cache"), **environment):
            return trtspec(*args)

    return call


def planned(result: subprocess.CompletedProcess[str]) -> Any:
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def of_weights(hub: Hub) -> list[str]:
    return [asked for asked in hub.asked if "/resolve/" in asked and "model.safetensors" in asked]


def test_a_plan_downloads_no_weights(hub: Hub, recipe: Path, pair_recipe: Path, run: Run) -> None:
    there, here = planned(run("plan", recipe, "--json")), planned(run("plan", pair_recipe, "--json"))
    assert of_weights(hub) == [f"GET /owner/model/resolve/{COMMIT}/model.safetensors bytes=0-100000"]
    assert there["values"] == here["values"]
    assert [step["name"] for step in there["steps"]] == [step["name"] for step in here["steps"]]
    dry = planned(run("build", recipe, "--dry-run", "--json"))
    assert dry["steps"]
    assert len(of_weights(hub)) == 1


def test_a_head_is_compared_with_a_target_of_the_hub(
    hub: Hub, tmp_path: Path, run: Run, llama_folder: Callable[..., Path]
) -> None:
    """A server downloads the target's weights by itself: they are not here when the head is checked."""
    write_head_for(llama_folder("other", hidden_size=16), tmp_path / "head", "medusa")
    recipe = tmp_path / "head.yaml"
    recipe.write_text(
        "name: head\ntarget: {model: owner/model}\ndraft: {model: ./head}\n"
        "speculation: {method: medusa, max_draft_len: 3}\n"
        "engine: {backend: vllm, release: 0.32.0}\nhardware: {gpu: none}\n"
    )
    said = run("build", recipe, "--output", tmp_path / "out").stderr
    assert (
        "do not fit: hidden size: the head reads states of width 16, but the target's have width 64" in said
    )


def test_two_concurrent_plans_make_one_outline_of_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot, both, made = tmp_path / "models--owner--model/snapshots" / COMMIT, Barrier(2), list[str]()
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")

    def plan() -> Path:
        weights = SimpleNamespace(path="model.safetensors", lfs=SimpleNamespace(sha256="0" * 64))
        both.wait(240)
        return download.fetch_headers("owner/model", snapshot, [weights], no_progress)

    def outline(repo_id: str, folder: Path, name: str) -> int:
        made.append(name)
        (folder / name).touch()
        return 0

    monkeypatch.setenv("TRTSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(download, "_outline", outline)
    with ThreadPoolExecutor(2) as pool:
        plans = [pool.submit(plan) for _ in range(2)]
    folders = {each.result() for each in plans}
    assert made == ["model.safetensors"]
    assert [folder.name for folder in folders] == [COMMIT]
    assert os.listdir(folders.pop().parent) == [COMMIT]


def test_a_pinned_model_needs_no_network_once_it_was_planned(hub: Hub, recipe: Path, run: Run) -> None:
    recipe.write_text(recipe.read_text().replace("owner/model", f"owner/model, revision: {COMMIT}"))
    first, second = (
        planned(run("plan", recipe, "--json")),
        planned(run("plan", recipe, "--json", HF_HUB_OFFLINE="1")),
    )
    for plan in (first, second):
        del plan["memory"]["free"]  # of this machine, at this moment
    assert second == first


def test_a_build_after_a_plan_has_the_weights(hub: Hub, recipe: Path, pair_recipe: Path, run: Run) -> None:
    planned(run("plan", recipe, "--json"))
    for file, output in ((recipe, "there"), (pair_recipe, "here")):
        planned(run("build", file, "--json", "--output", recipe.with_name(output)))
    engines = [recipe.with_name(output) / "target/engine/rank0.safetensors" for output in ("there", "here")]
    assert engines[0].read_bytes() == engines[1].read_bytes()


def test_a_build_with_nothing_to_do_downloads_no_weights(
    hub: Hub, recipe: Path, run: Run, tmp_path: Path
) -> None:
    build = ("build", recipe, "--json", "--output", tmp_path / "build")
    assert "convert target" in planned(run(*build))["ran"]
    shutil.rmtree(tmp_path / "home")
    hub.asked.clear()
    assert planned(run(*build))["ran"] == []
    assert of_weights(hub) == []


def test_engines_that_a_store_has_need_no_weights(hub: Hub, recipe: Path, run: Run, tmp_path: Path) -> None:
    store = ("--store", tmp_path / "store", "--json")
    planned(run("build", recipe, *store, "--output", tmp_path / "first"))
    for folder in ("home", "cache"):
        shutil.rmtree(tmp_path / folder)
    hub.asked.clear()
    ran = planned(run("build", recipe, *store, "--output", tmp_path / "second"))["ran"]
    assert {"pull target", "pull draft", "check pair"} <= set(ran)
    assert [asked.split()[2] for asked in of_weights(hub)] == ["bytes=0-100000"]
    manifests = [json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("first", "second")]
    assert manifests[0]["models"] == manifests[1]["models"]


def test_a_build_for_a_server_of_others_reads_no_weights(
    hub: Hub, recipe: Path, run: Run, tmp_path: Path
) -> None:
    fetch = "from huggingface_hub import snapshot_download as get; print(get('owner/model'))"
    fetched = subprocess.run(
        [sys.executable, "-c", fetch], env=hub.environment(tmp_path / "home"), capture_output=True, text=True
    )
    weights = Path(fetched.stdout.strip(), "model.safetensors").resolve()
    with weights.open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        stream.write(b"\xff")
    recipe.write_text("""\
name: hub
target: {model: owner/model}
speculation: {method: ngram}
engine: {backend: vllm}
hardware: {gpu: none}
""")
    planned(run("build", recipe, "--json", "--output", tmp_path / "build"))
    manifest = json.loads((tmp_path / "build/manifest.json").read_text())
    published = hashlib.sha256((hub.folder / "model.safetensors").read_bytes()).hexdigest()
    assert manifest["models"]["target"]["files"]["model.safetensors"] == published == weights.name


def test_an_outline_is_never_converted(recipe: Path, hub: Hub, run: Run, tmp_path: Path) -> None:
    planned(run("plan", recipe, "--json"))
    (outline,) = (tmp_path / "cache").glob("outlines/*/*")
    with pytest.raises(ModelError, match="has only the headers of a model"):
        run_step(
            convert, read_source(outline), None, ConvertOptions("float32"), None, None, tmp_path / "x", print
        )
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "owner/model/model.safetensors: is not safetensors"),
        ((10).to_bytes(8, "little") + b"{nonsense}", "owner/model/model.safetensors: is not safetensors"),
        ((1 << 62).to_bytes(8, "little"), "owner/model/model.safetensors: is not safetensors"),
    ],
)
def test_weights_that_are_none(hub: Hub, recipe: Path, run: Run, content: bytes, said: str) -> None:
    (hub.folder / "model.safetensors").write_bytes(content)
    result = run("plan", recipe)
    assert result.returncode == 1
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert not [path for path in (recipe.parent / "cache").rglob("*") if path.is_file()]
