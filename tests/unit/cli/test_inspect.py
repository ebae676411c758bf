from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trtspec.base.digest import digest_of
from trtspec.base.progress import no_progress
from trtspec.cli.app import app
from trtspec.pipeline.run import records

RUN = CliRunner()


def test_a_table_for_a_person(llama_folder: Callable[..., Path]) -> None:
    folder = llama_folder(vocab_size=300)
    result = RUN.invoke(app, ["inspect", str(folder)])
    assert result.exit_code == 0
    rows = dict(line.split(maxsplit=1) for line in result.stdout.splitlines()[2:] if line)
    assert result.stdout.splitlines()[0] == f"{folder}: Hugging Face model"
    assert rows["architecture"] == "LlamaForCausalLM"
    assert rows["quant_algo"] == "none"
    assert rows["parameters"] == "40.9 k"
    assert rows["BF16"] == "21 tensors, 81.7 kB"
    assert rows["odd"].startswith("vocab_size: 300 is not a multiple of 8")


def test_json_for_a_machine(llama_folder: Callable[..., Path]) -> None:
    folder = llama_folder()
    (folder / "tokenizer.json").unlink()
    result = RUN.invoke(app, ["inspect", str(folder), "--json"])
    content = json.loads(result.stdout)
    files = {name: (folder / name).read_bytes() for name in ("config.json", "model.safetensors")}
    assert content["kind"] == "hugging_face"
    assert content["ok"]
    assert content["files"] == {name: len(data) for name, data in files.items()}
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    assert content["digest"] == digest_of(sums)
    assert [finding["severity"] for finding in content["findings"]] == ["note"]


def test_inspect_ends_with_status_1_for_a_truncated_file(llama_folder: Callable[..., Path]) -> None:
    folder = llama_folder()
    (folder / "model.safetensors").write_bytes(b"")
    result = RUN.invoke(app, ["inspect", str(folder), "--json"])
    assert result.exit_code == 1
    assert not json.loads(result.stdout)["ok"]
    assert "wrong  model.safetensors: is truncated" in RUN.invoke(app, ["inspect", str(folder)]).stdout


def test_bytes_of_a_large_folder_are_read_when_asked_for(
    llama_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = llama_folder()
    monkeypatch.setattr(records, "LARGE", 10)
    assert json.loads(RUN.invoke(app, ["inspect", str(folder), "--json"]).stdout)["digest"] is None
    shown = RUN.invoke(app, ["inspect", str(folder)]).stdout
    assert "not read; --digest reads every byte" in shown
    result = RUN.invoke(app, ["inspect", str(folder), "--json", "--digest"])
    assert len(json.loads(result.stdout)["digest"]) == 64
    assert "read model.safetensors ..." in result.stderr


def test_a_build_knows_its_digests(llama_folder: Callable[..., Path], tmp_path: Path) -> None:
    """The record that a build keeps is believed, as a build believes it."""
    folder = llama_folder()
    store = tmp_path / ".trtspec" / "digests.json"
    known = records.FileDigests(store, no_progress)
    sums = {name: known.of(folder / name) for name in ("config.json", "model.safetensors")}
    known.save()
    store.write_text(store.read_text().replace(sums["model.safetensors"], "0" * 64))
    content = json.loads(RUN.invoke(app, ["inspect", str(folder), "--json"]).stdout)
    assert content["digest"] == digest_of({**sums, "model.safetensors": "0" * 64})


def test_names_from_files_send_nothing_to_the_terminal(llama_folder: Callable[..., Path]) -> None:
    folder = llama_folder()
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "\x1b[2J"}
    (folder / "config.json").write_text(json.dumps(config))
    assert "\x1b" not in RUN.invoke(app, ["inspect", str(folder)]).stdout


def test_neither_folder_nor_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = RUN.invoke(app, ["inspect", str(tmp_path / "nothing")])
    assert str(result.exception) == f"{tmp_path / 'nothing'}: is not a folder"
    (recipe := tmp_path / "recipe.yaml").touch()
    result = RUN.invoke(app, ["inspect", str(recipe)])
    assert str(result.exception) == f"{recipe}: is a recipe, not a folder"
    result = RUN.invoke(app, ["inspect", "owner/nothing"])
    assert "is neither a folder nor a Hub model in this machine's cache" in str(result.exception)


def test_a_build_and_what_it_lacks(pair_recipe: Path, tmp_path: Path) -> None:
    build = tmp_path / "built"
    assert RUN.invoke(app, ["build", str(pair_recipe), "--output", str(build)]).exit_code == 0
    result = RUN.invoke(app, ["inspect", str(build)])
    assert (result.exit_code, result.stdout.splitlines()[0]) == (0, f"{build}: build")
    rows = dict(line.split(maxsplit=1) for line in result.stdout.splitlines()[2:] if line)
    manifest = json.loads((build / "manifest.json").read_text())
    assert (rows["name"], rows["backend"], rows["target"]) == (manifest["name"], "torch", "./target")
    content = json.loads(RUN.invoke(app, ["inspect", str(build), "--json"]).stdout)
    assert content["kind"] == "build"
    assert content["files"].keys() == manifest["outputs"].keys() | {"manifest.json"}
    assert {finding["subject"].split(":")[0] for finding in content["findings"]} <= {
        "draft/checkpoint",
        "target/checkpoint",
    }

    (build / "target/engine/rank0.safetensors").write_bytes(b"")
    (build / "draft/engine/config.json").unlink()
    result = RUN.invoke(app, ["inspect", str(build)])
    assert result.exit_code == 1
    assert "wrong  draft/engine/config.json: is missing" in result.stdout
    assert "wrong  target/engine: rank0.safetensors: is truncated" in result.stdout


def test_a_manifest_that_is_none_is_no_build(tmp_path: Path) -> None:
    for text in ("{}", "[]", "no JSON", '{"schema": 1, "name": 1}'):
        (tmp_path / "manifest.json").write_text(text)
        failed = RUN.invoke(app, ["inspect", str(tmp_path)])
        assert "has no config.json" in str(failed.exception)
