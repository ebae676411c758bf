"""`trtspec build` as a user runs it: a recipe, two models."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.command_line import trtspec
from trtspec import plan

TRTSPEC = Path(sys.executable).with_name("trtspec")
ALL = [
    *("check pair", "copy tokenizer", "convert target", "convert draft", "verify target", "verify draft"),
    *("build target", "build draft", "write repository", "write manifest"),
]


def ran(recipe: Path, *arguments: object) -> list[str]:
    """The steps that a build runs."""
    command = ("build", recipe, "--json", "--output", recipe.parent / "build", *arguments)
    result = trtspec(*command)
    assert result.returncode == 0, result.stderr
    steps: list[str] = json.loads(result.stdout)["ran"]
    return steps


def leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.rglob(".*") if path.suffix in (".partial", ".replaced")]


def test_a_second_build_of_the_same_recipe_runs_no_step(pair_recipe: Path) -> None:
    assert ran(pair_recipe) == ALL
    assert ran(pair_recipe) == []
    build = pair_recipe.parent / "build"
    for path in ("target/checkpoint", "target/engine", "draft/checkpoint", "draft/engine"):
        assert (build / path / "config.json").is_file()
        assert load_file(build / path / "rank0.safetensors")
    assert (build / "model_repository/speculative_llm/config.pbtxt").is_file()
    assert json.loads((build / "tokenizer/generation_config.json").read_text())["eos_token_id"] == [1]


def test_a_plan_reads_each_file_of_a_model_once(pair_recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[str]()

    def counted(file: Path, *words: Any, **options: Any) -> Any:
        read.append(file.relative_to(pair_recipe.parent).as_posix())
        return open(file, *words, **options)

    monkeypatch.setattr("trtspec.models.source.open", counted, raising=False)
    plan(pair_recipe, output=pair_recipe.parent / "build")
    assert {"target/config.json", "draft/tokenizer.json", "target/model.safetensors"} <= set(read)
    # The draft has one layer, as a head of EAGLE: its tensors tell that it is none.
    assert {name for name in read if read.count(name) > 1} == {"draft/model.safetensors"}


def test_the_manifest_says_what_was_made_of_what_and_nothing_of_the_machine(pair_recipe: Path) -> None:
    ran(pair_recipe)
    build = pair_recipe.parent / "build"
    text = (build / "manifest.json").read_text()
    manifest = json.loads(text)
    assert str(pair_recipe.parent) not in text
    for name, digest in manifest["outputs"].items():
        assert subprocess.check_output(["sha256sum", build / name], text=True).split()[0] == digest
    source = pair_recipe.parent / "draft/model.safetensors"
    assert manifest["models"]["draft"]["files"]["model.safetensors"] in subprocess.check_output(
        ["sha256sum", source], text=True
    )
    assert manifest["values"]["speculation.max_draft_len"] == 4
    assert set(manifest["times"]) == set(ALL[:-1])


def test_only_what_a_change_touches_is_run(pair_recipe: Path) -> None:
    ran(pair_recipe)
    text = pair_recipe.read_text()
    pair_recipe.write_text(text + "speculation: {max_draft_len: 3}\n")
    assert ran(pair_recipe) == ["build target", "write manifest"]
    pair_recipe.write_text(
        text.replace("dtype: float32", "dtype: float16") + "speculation: {max_draft_len: 3}\n"
    )
    assert ran(pair_recipe) == ["convert draft", "verify draft", "build draft", "write manifest"]

    weights = pair_recipe.parent / "target/model.safetensors"
    tensors = load_file(weights)
    tensors["model.norm.weight"] += 1
    save_file(tensors, weights)
    assert ran(pair_recipe) == ["convert target", "verify target", "build target", "write manifest"]


def test_every_template_of_a_tokenizer_is_copied_and_a_changed_one_is_copied_again(pair_recipe: Path) -> None:
    target, copied = pair_recipe.parent / "target", pair_recipe.parent / "build" / "tokenizer"
    template = Path("additional_chat_templates", "tool_use.jinja")
    (target / template).parent.mkdir()
    (target / template).write_text("{{ tools }}")
    (target / "chat_template.json").write_text('{"chat_template": "{{ messages }}"}')
    assert ran(pair_recipe) == ALL
    assert (copied / template).read_text() == "{{ tools }}"
    assert (copied / "chat_template.json").read_bytes() == (target / "chat_template.json").read_bytes()

    (target / template).write_text("{{ tools | tojson }}")
    assert "copy tokenizer" in ran(pair_recipe)
    assert (copied / template).read_text() == "{{ tools | tojson }}"


def test_convert_does_a_part_of_the_build(pair_recipe: Path) -> None:
    build = pair_recipe.parent / "build"
    command = ("convert", pair_recipe, "--only", "draft", "--json", "--output", build)
    assert json.loads(trtspec(*command).stdout)["ran"] == ["convert draft"]
    assert json.loads(trtspec(*command, "--verify").stdout)["ran"] == ["verify draft"]
    assert not (build / "target").exists()
    assert ran(pair_recipe) == [name for name in ALL if name not in ("convert draft", "verify draft")]


def test_a_dry_run_writes_nothing_and_knows_what_is_done(pair_recipe: Path) -> None:
    build = pair_recipe.parent / "build"
    command = ("build", pair_recipe, "--dry-run", "--json", "--output", build)
    assert not any(step["done"] for step in json.loads(trtspec(*command).stdout)["steps"])
    assert not build.exists()
    ran(pair_recipe)
    before = {path: path.stat().st_mtime_ns for path in build.rglob("*")}
    assert all(step["done"] for step in json.loads(trtspec(*command).stdout)["steps"])
    assert before == {path: path.stat().st_mtime_ns for path in build.rglob("*")}


def kill_everywhere(recipe: Path, every: int) -> int:
    """How many builds were killed, each at another moment."""
    script = Path(__file__).with_name("killed_everywhere.py")
    command: list[str | Path] = [sys.executable, script, recipe, recipe.parent / "build", str(every)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=6000, check=False)
    assert result.returncode == 0, result.stderr
    return int(result.stdout)


@pytest.mark.parametrize(("every", "kills"), [(97, 1), pytest.param(11, 20, marks=pytest.mark.sweep)])
def test_killed_at_any_moment_the_next_run_ends_with_the_same_bytes(
    pair_recipe: Path, every: int, kills: int
) -> None:
    assert kill_everywhere(pair_recipe, every) > kills


@pytest.mark.sweep
@pytest.mark.parametrize(("every", "kills"), [(61, 1), (7, 10)])
def test_killed_while_ranks_are_written(pair_recipe: Path, every: int, kills: int) -> None:
    pair_recipe.write_text(
        "name: pair\n"
        "target: {model: ./target, parallel: {tensor: 2, pipeline: 2}}\n"
        "draft: {model: ./draft, dtype: float16, parallel: {tensor: 4}}\n"
        "hardware: {gpu: h200, count: 8}\n"
    )
    assert kill_everywhere(pair_recipe, every) > kills
    assert len([*pair_recipe.parent.glob("build/*/checkpoint/rank*.safetensors")]) == 8


@pytest.fixture
def slow_pair(pair_recipe: Path, llama_folder: Callable[..., Path]) -> Path:
    """A pair whose conversion takes long enough to be interrupted."""
    llama_folder("target", hidden_size=512, vocab_size=40_000, num_hidden_layers=1, dtype=torch.bfloat16)
    pair_recipe.write_text(
        pair_recipe.read_text().replace("model: ./target", "model: ./target, dtype: float32")
    )
    return pair_recipe


def start_and_wait_for(recipe: Path, name: str) -> subprocess.Popen[str]:
    """Starts a build and returns when this file or folder of it exists."""
    build = recipe.parent / "build"
    process = subprocess.Popen(
        [str(TRTSPEC), "build", str(recipe), "--output", str(build)], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 240
    while not (build / name).exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
    return process


def test_an_interrupted_build_leaves_no_partial_files_and_goes_on_later(slow_pair: Path) -> None:
    process = start_and_wait_for(slow_pair, "target/.checkpoint.partial/rank0.safetensors")
    process.send_signal(signal.SIGINT)
    _, talk = process.communicate(timeout=600)
    assert process.returncode == 130, talk
    assert "Traceback" not in talk
    assert not leftovers(slow_pair.parent / "build")
    assert ran(slow_pair) == ALL[2:]


def test_two_builds_of_one_directory(slow_pair: Path) -> None:
    process = start_and_wait_for(slow_pair, "target/.checkpoint.partial/rank0.safetensors")
    process.send_signal(signal.SIGSTOP)
    other = trtspec("build", slow_pair, "--output", slow_pair.parent / "build")
    process.send_signal(signal.SIGCONT)
    assert process.wait(timeout=600) == 0
    assert other.returncode == 1
    assert f"another build is running here (process {process.pid})" in other.stderr


def test_a_full_disk_ends_the_build_cleanly_and_it_goes_on_later(slow_pair: Path) -> None:
    def no_large_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    build = slow_pair.parent / "build"
    command: list[str | Path] = [TRTSPEC, "build", slow_pair, "--output", build]
    result = subprocess.run(
        command, preexec_fn=no_large_files, capture_output=True, text=True, timeout=600, check=False
    )
    assert result.returncode == 1
    assert f"error: {build}/target/checkpoint: the disk is full" in result.stderr
    assert "Traceback" not in result.stderr
    assert not leftovers(build)
    assert ran(slow_pair) == ALL[2:]


NORM = "model.norm.weight"


def shards(folder: Path) -> list[Path]:
    """The model in two shards, with an index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    files = [folder / f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    places = {name: files[number % 2] for number, name in enumerate(tensors)}
    for file in files:
        save_file({name: tensors[name] for name in places if places[name] == file}, file)
    index = {"weight_map": {name: file.name for name, file in places.items()}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return files


def edit(folder: Path, tensors: dict[str, torch.Tensor], pop: str | None = None) -> None:
    found = load_file(folder / "model.safetensors") | tensors
    save_file({name: tensor for name, tensor in found.items() if name != pop}, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "holds no model.safetensors"),
        (lambda folder: os.truncate(folder / "model.safetensors", 5000), "is cut off"),
        (lambda folder: (folder / "config.json").write_text("{}"), "has no architectures"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer.json"),
        (lambda folder: os.truncate(shards(folder)[1], 5000), "is cut off"),
        (lambda folder: shards(folder)[1].unlink(), "the index names this shard, but it is missing"),
        (lambda folder: shutil.copy(*shards(folder)), "is also in"),
        (
            lambda folder: edit(folder, {}, pop="model.norm.weight"),
            "model.norm.weight: this tensor is missing",
        ),
        (
            lambda folder: edit(folder, {NORM: torch.zeros(31)}),
            r"has shape [31], but config.json demands [32]",
        ),
        (lambda folder: edit(folder, {NORM: torch.zeros(32).int()}), "has dtype I32, expected one of"),
    ],
)
def test_a_model_that_is_broken_is_one_line(
    pair_recipe: Path, damage: Callable[[Path], None], said: str
) -> None:
    damage(pair_recipe.parent / "draft")
    result = trtspec("build", pair_recipe, "--output", pair_recipe.parent / "build")
    assert result.returncode == 1
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert said in errors[0]
    assert str(pair_recipe.parent / "draft") in errors[0]
    assert not (pair_recipe.parent / "build/draft/checkpoint").exists()
    assert not leftovers(pair_recipe.parent / "build")
    assert "Traceback" not in result.stderr
