"""Files of a model that are no files: nothing waits for a pipe, and nothing reads a device without end."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes.gpu_machine import H200, GpuMachine
from tests.fakes.heads import write_head_for
from tests.support.command_line import trtspec
from trtspec.base.errors import ModelError
from trtspec.checkpoint.tensors import Reader
from trtspec.models.source import has_file, open_file, read_file, read_header, read_source

NAMES = (
    *("config.json", "generation_config.json", "hf_quant_config.json", "model.safetensors"),
    *("model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
    *("special_tokens_map.json", "added_tokens.json"),
)
COMMANDS = ("build", "plan", "inspect", "check")


def pipe(file: Path) -> None:
    os.mkfifo(file)


def device(file: Path) -> None:
    """A link to a device that gives zeros for ever."""
    file.symlink_to("/dev/zero")


def replace(file: Path, make: Callable[[Path], None]) -> None:
    """Puts something else in the place of a file; an index names a shard then."""
    if file.name == "model.safetensors.index.json":
        (file.parent / "model.safetensors").unlink()
    file.unlink(missing_ok=True)
    make(file)


@pytest.fixture(autouse=True)
def nothing_waits() -> Iterator[None]:
    """A pipe that is opened all the same is waited for no longer than this."""

    def end(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, end)
    signal.alarm(60)
    yield
    signal.alarm(0)


def said_by(command: str, recipe: Path, model: Path) -> str:
    """What a command says; it must not end well, but for an inspection that finds something odd."""
    output = () if command in ("inspect", "check") else ("--output", recipe.parent / "out")
    result = trtspec(command, model if command == "inspect" else recipe, *output)
    said = result.stdout + result.stderr
    assert result.returncode == 1 or "odd " in said, said
    return said


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("make", "kind"), [(pipe, "named pipe"), (device, "device")])
def test_each_file_of_a_model_is_refused_as_what_it_is(
    pair_recipe: Path, name: str, make: Callable[[Path], None], kind: str
) -> None:
    file = pair_recipe.parent / "draft" / name
    replace(file, make)
    for command in COMMANDS:
        said = said_by(command, pair_recipe, file.parent)
        assert f"{name}: is a {kind}, not a file" in said, command
        assert "Traceback" not in said
    assert not (pair_recipe.parent / "out/draft").exists()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_head_that_is_a_pipe(tmp_path: Path, llama_folder: Callable[..., Path], name: str) -> None:
    llama_folder("target", hidden_size=16, intermediate_size=32, num_hidden_layers=4)
    head = write_head_for(tmp_path / "target", tmp_path / "head", "speculators")
    replace(head / name, pipe)
    recipe = tmp_path / "head.yaml"
    recipe.write_text(
        "name: head\ntarget: {model: ./target, dtype: float32}\ndraft: {model: ./head}\n"
        "speculation: {method: eagle3}\nengine: {backend: torch, max_seq_len: 96}\nhardware: {gpu: none}\n"
    )
    for command in COMMANDS:
        assert f"{name}: is a named pipe, not a file" in said_by(command, recipe, head), command


def test_a_shard_that_is_a_pipe(pair_recipe: Path) -> None:
    draft = pair_recipe.parent / "draft"
    (draft / "model.safetensors").rename(draft / "model-00001-of-00001.safetensors")
    names = read_header(draft / "model-00001-of-00001.safetensors")
    index = {"weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}
    (draft / "model.safetensors.index.json").write_text(json.dumps(index))
    assert trtspec("check", pair_recipe).returncode == 0
    replace(draft / "model-00001-of-00001.safetensors", pipe)
    for command in COMMANDS:
        said = said_by(command, pair_recipe, draft)
        assert "model-00001-of-00001.safetensors: is a named pipe, not a file" in said


def test_an_adapter_that_is_a_pipe(h200_recipe: Path, tmp_path: Path) -> None:
    machine = GpuMachine(tmp_path / "machine")
    machine.gpus(H200)
    machine.tensorrt_llm()
    lora = "{model: ./target, build: {lora_plugin: auto, lora_dir: adapter}}"
    h200_recipe.write_text(h200_recipe.read_text().replace("{model: ./target}", lora))
    (tmp_path / "adapter").mkdir()
    pipe(tmp_path / "adapter/adapter_model.safetensors")
    result = trtspec("build", h200_recipe, "--output", tmp_path / "out", environment=machine.environment)
    assert result.returncode == 1
    assert "adapter/adapter_model.safetensors: is a named pipe, not a file" in result.stderr


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "chat_template.jinja"])
def test_a_text_without_end_is_not_read_to_its_end(pair_recipe: Path, name: str) -> None:
    """A file of a terabyte that takes no room on the disk."""
    file = pair_recipe.parent / "draft" / name
    file.touch()
    os.truncate(file, 1 << 40)
    # A plan does not read tokenizers.
    for command in COMMANDS if name == "config.json" else ("build", "inspect", "check"):
        assert f"{name}: has more than 268 MB" in said_by(command, pair_recipe, file.parent), command


def test_a_pipe_in_the_place_of_a_manifest(pair_recipe: Path) -> None:
    pipe(pair_recipe.parent / "draft/manifest.json")
    said = said_by("inspect", pair_recipe, pair_recipe.parent / "draft")
    assert "manifest.json: is a named pipe, not a file" in said


def test_weights_that_become_a_pipe_before_they_are_converted(pair_recipe: Path) -> None:
    source = read_source(pair_recipe.parent / "draft")
    replace(source.folder / "model.safetensors", pipe)
    with pytest.raises(ModelError, match="is a named pipe, not a file"):
        Reader({tensor.file for tensor in source.tensors.values()})
    with pytest.raises(ModelError, match="is a named pipe, not a file"):
        next(iter(source.tensors.values())).read()


def test_a_link_to_a_file_is_a_file(pair_recipe: Path) -> None:
    """The Hub's cache has links to files that are named by their digests."""
    target = pair_recipe.parent / "target"
    blobs = pair_recipe.parent / "blobs"
    target.rename(blobs)
    target.mkdir()
    for file in blobs.iterdir():
        (target / file.name).symlink_to(os.path.relpath(file, target))
    assert trtspec("build", pair_recipe, "--output", pair_recipe.parent / "out").returncode == 0


def test_a_folder_or_socket_in_the_place_of_a_model_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    assert not has_file(tmp_path / "link")
    assert not has_file(tmp_path / "nowhere/at/all")
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)  # a path of a socket has 108 letters at most
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        for name in ("folder", "socket"):
            for use in (has_file, open_file, read_file):
                with pytest.raises(ModelError, match=f"{name}: is a {name}, not a file"):
                    use(Path(name))
    with pytest.raises(FileNotFoundError):
        open_file(Path("link"))
