"""Another file takes the place of one that a build has digested: the build ends, and keeps nothing of it.

`hf download`, git and rsync replace files so: by a rename.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import trtspec
from tests.fakes.gpu_machine import GpuMachine
from tests.fakes.heads import write_head_for
from tests.support.command_line import trtspec as command
from trtspec.base.errors import ChangedError
from trtspec.base.progress import Advance
from trtspec.pipeline.run.records import read_records
from trtspec.pipeline.store import lease
from trtspec.pipeline.store.store import Store

FP8 = "quantization: {weights: fp8, calibration: {dataset: DATASET, samples: 2, max_length: 16}}"


def move_another_over(file: Path) -> None:
    """Puts a file of other content there, or one where there was none, as a download does."""
    made = file.with_name("downloading")
    if file.suffix == ".safetensors" and file.exists():
        tensors = load_file(file)
        others = {
            name: tensor * 2 if tensor.is_floating_point() else tensor for name, tensor in tensors.items()
        }
        save_file(others, made, {"format": "pt"})
    else:
        made.write_text(f"{file.read_text() if file.exists() else '{}'}\n")
    made.rename(file)


class Meanwhile:
    """Moves another file over one of a build's once, when the build shows this line, before it goes on."""

    def __init__(self, label: str, file: Path) -> None:
        self._label, self._file, self.is_done = label, file, False

    @contextmanager
    def __call__(self, label: str, size: int | None) -> Iterator[Advance]:
        if self._label in label and not self.is_done:
            self.is_done = True
            move_another_over(self._file)
        yield lambda *_: None


def assert_ends(recipe: Path, label: str, name: str, store: Path | None = None) -> None:
    """Asserts that a build ends and keeps nothing of a step, if a file is replaced before the step reads."""
    output, file = recipe.parent / "build", recipe.parent / name
    meanwhile, pushes = Meanwhile(label, file), Store(str(store)) if store else None
    before = {entry.digest for entry in pushes.entries()} if pushes else set[str]()
    with pytest.raises(ChangedError) as caught:
        trtspec.build(recipe, output=output, store=pushes, progress=meanwhile)
    assert meanwhile.is_done
    assert caught.value.subject == str(file)
    assert caught.value.problem == "has changed since this build began to read it"
    assert label == caught.value.step
    assert label not in read_records(output)
    assert not (output / "manifest.json").exists()
    assert not [path for path in output.rglob(".*") if path.suffix in (".partial", ".replaced")]
    if pushes:
        assert {entry.digest for entry in pushes.entries()} == before
    # What was replaced is a source like any other.
    assert label in trtspec.build(recipe, output=output, store=pushes).ran


@pytest.mark.parametrize("has_store", [False, True])
def test_weights_are_replaced_while_they_are_converted(
    pair_recipe: Path, tmp_path: Path, *, has_store: bool
) -> None:
    store = tmp_path / "store" if has_store else None
    assert_ends(pair_recipe, "convert target", "target/model.safetensors", store)
    output = tmp_path / "pulled" if store else tmp_path / "build"
    trtspec.build(pair_recipe, output=output, store=Store(str(store)) if store else None)
    # The key of the new weights has an engine of the new weights.
    made, source = output / "target/engine/rank0.safetensors", tmp_path / "target/model.safetensors"
    assert (load_file(made)["lm_head.weight"] == load_file(source)["lm_head.weight"]).all()


@pytest.mark.parametrize(
    ("step", "name"),
    [
        ("check pair", "draft/config.json"),
        ("copy tokenizer", "target/tokenizer.json"),
        ("copy tokenizer", "target/chat_template.jinja"),
        ("copy tokenizer", "target/generation_config.json"),
        ("convert draft", "draft/model.safetensors"),
        ("convert draft", "draft/hf_quant_config.json"),
        ("verify target", "target/model.safetensors"),
        ("build draft", "draft/model.safetensors"),
        ("write repository", "target/tokenizer_config.json"),
        ("write manifest", "target/model.safetensors"),
    ],
)
def test_each_step_ends_if_a_source_is_replaced_or_added(pair_recipe: Path, step: str, name: str) -> None:
    if name.endswith("hf_quant_config.json"):
        # Such a file would change the model, so that the next build is another one.
        with pytest.raises(ChangedError):
            trtspec.build(pair_recipe, progress=Meanwhile(step, pair_recipe.parent / name))
        return
    assert_ends(pair_recipe, step, name)


@pytest.mark.parametrize(
    ("dataset", "step", "name"),
    [
        ("texts.jsonl", "calibrate target", "texts.jsonl"),
        ("texts.jsonl", "calibrate target", "target/model.safetensors"),
        ("texts.jsonl", "calibrate target", "target/tokenizer.json"),
        ("ready.calibration.json", "calibrate target", "ready.calibration.json"),
    ],
)
def test_a_build_ends_when_a_file_that_its_calibration_reads_is_replaced(
    pair_recipe: Path, tmp_path: Path, dataset: str, step: str, name: str
) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "green bottles"}\n{"text": "standing on a wall"}\n')
    plain = pair_recipe.read_text()
    fp8 = plain.replace("{model: ./target}", f"{{model: ./target, {FP8}}}")
    pair_recipe.write_text(fp8.replace("DATASET", "texts.jsonl"))
    if dataset != "texts.jsonl":
        trtspec.build(pair_recipe, output=tmp_path / "first", only="target", until="calibrate")
        (tmp_path / "first/target/calibration.json").rename(tmp_path / dataset)
        pair_recipe.write_text(fp8.replace("DATASET", dataset))
    assert_ends(pair_recipe, step, name)


@pytest.mark.parametrize("step", ["check head", "build draft"])
@pytest.mark.parametrize("name", ["head/model.safetensors", "head/config.json"])
def test_a_head_is_replaced(tmp_path: Path, llama_folder: Callable[..., Path], step: str, name: str) -> None:
    llama_folder("target", hidden_size=16, intermediate_size=32, num_hidden_layers=4)
    write_head_for(tmp_path / "target", tmp_path / "head", "speculators")
    recipe = tmp_path / "head.yaml"
    recipe.write_text(
        "name: head\ntarget: {model: ./target, dtype: float32}\ndraft: {model: ./head}\n"
        "speculation: {method: eagle3, max_draft_len: 3}\nengine: {backend: torch, max_seq_len: 96}\n"
        "hardware: {gpu: none}\n"
    )
    assert_ends(recipe, step, name)


@pytest.mark.parametrize(
    ("engine", "step", "name"),
    [
        ("backend: torch", "choose layers draft", "target/model.safetensors"),
        ("backend: torch", "choose layers draft", "texts.jsonl"),
        ("backend: torch", "build draft", "target/model.safetensors"),
        ("backend: vllm", "write layers draft", "target/model.safetensors"),
        ("backend: vllm", "write launch", "target/tokenizer.json"),
    ],
)
def test_a_draft_of_layers_whose_target_is_replaced(
    tmp_path: Path, llama_folder: Callable[..., Path], engine: str, step: str, name: str
) -> None:
    llama_folder("target", num_hidden_layers=4)
    (tmp_path / "texts.jsonl").write_text('{"text": "ab"}\n{"text": "cde"}\n')
    gpu, layers = ("none", "auto") if "torch" in engine else ("h100", "[0, 2]")
    search = ", layer_search: {dataset: texts.jsonl, samples: 2, max_tokens: 4, tries: 2}"
    recipe = tmp_path / "own.yaml"
    recipe.write_text(
        f"name: own\ntarget: {{model: ./target}}\n"
        f"draft: {{layers_of_target: {layers}{search if layers == 'auto' else ''}}}\n"
        f"speculation: {{max_draft_len: 3}}\nengine: {{{engine}, max_seq_len: 96}}\n"
        f"hardware: {{gpu: {gpu}}}\n"
    )
    assert_ends(recipe, step, name)


def test_a_tokenizer_is_replaced_while_engines_are_pulled(pair_recipe: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    trtspec.build(pair_recipe, output=tmp_path / "first", store=Store(str(store)))
    assert_ends(pair_recipe, "pull draft", "target/tokenizer.json", store)


def test_an_adapter_is_replaced_while_trtllm_build_runs(h200_recipe: Path, machine: GpuMachine) -> None:
    machine.tensorrt_llm()
    folder = h200_recipe.parent
    lora = "{model: ./target, build: {lora_plugin: auto, lora_dir: adapter}}"
    h200_recipe.write_text(h200_recipe.read_text().replace("{model: ./target}", lora))
    (folder / "adapter").mkdir()
    for name in ("adapter/adapter_model.safetensors", "other"):
        save_file(load_file(folder / "draft/model.safetensors"), folder / name)
    (folder / "adapter/adapter_config.json").write_text('{"r": 8}')
    builder = shutil.which("trtllm-build", path=machine.environment["PATH"])
    assert builder
    Path(builder).rename(f"{builder}.real")
    replaces = f"mv {folder}/other {folder}/adapter/adapter_model.safetensors"
    machine.command("trtllm-build", f'{replaces}\nexec {builder}.real "$@"')
    words = ("build", h200_recipe, "--output", folder / "out", "--only", "target")
    result = command(*words, environment=machine.environment)
    assert result.returncode == 1
    assert "adapter/adapter_model.safetensors: has changed since this build began to read it" in result.stderr
    assert "wait until nothing writes to it, and run the same command again" in result.stderr
    assert not (folder / "out/target/engine").exists()
    assert "build target" not in read_records(folder / "out")


def test_weights_are_replaced_while_another_builds_the_engine(
    pair_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease would be that of an engine of the old weights."""
    monkeypatch.setattr(lease, "POLL_S", 0.01)
    store, file = Store(str(tmp_path / "store")), tmp_path / "target/model.safetensors"
    made = trtspec.plan(pair_recipe, store=store)
    named = lease.Builder("target of pair", 3600.0)

    @contextmanager
    def watch(label: str, size: int | None) -> Iterator[Advance]:
        if label.startswith("wait for"):
            move_another_over(file)
            store.files.remove(store.files.find("building"))
        yield lambda *_: None

    for _, platform, key in made.unbuilt(made.pending(), None):
        store.files.write(f"building/{platform.folder}/{key}/000001.json", lease.to_bytes(named))
    with pytest.raises(ChangedError) as caught:
        trtspec.build(pair_recipe, output=tmp_path / "build", store=store, progress=watch)
    assert caught.value.subject == str(file)
    assert store.entries() == []
    assert not (tmp_path / "build/target").exists()


def test_a_build_whose_source_gets_another_name_goes_on(pair_recipe: Path, tmp_path: Path) -> None:
    """A hard link, as backups make, changes the status of a file and nothing in it."""

    @contextmanager
    def watch(label: str, size: int | None) -> Iterator[Advance]:
        if label == "convert target":
            os.link(tmp_path / "target/model.safetensors", tmp_path / "backup")
        yield lambda *_: None

    done = trtspec.build(pair_recipe, output=tmp_path / "build", progress=watch)
    manifest = json.loads((done.output / "manifest.json").read_text())
    assert set(done.ran) == {*manifest["times"], "write manifest"}
