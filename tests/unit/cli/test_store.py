from __future__ import annotations

import json
import signal
from os import getpid
from pathlib import Path
from socket import gethostname

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from typer.testing import CliRunner, Result

from trtspec.base.errors import StoreError, UnavailableError
from trtspec.base.progress import no_progress
from trtspec.cli.app import app
from trtspec.pipeline.engine.directory import Runtime
from trtspec.pipeline.store import upkeep
from trtspec.pipeline.store.lease import leased
from trtspec.pipeline.store.store import Entry, Platform, Store
from trtspec.pipeline.store.transfer import describe, push

H200 = Platform("tensorrt_llm", 90, "10.14.1.48", "1.2.1")
MANIFEST = {
    "name": "pair",
    "recipe": "5d",
    "models": {
        "target": {"model": "example/target", "revision": "a" * 40, "files": {"config.json": "b" * 64}},
        "draft": {"model": "./draft", "revision": None, "files": {}},
    },
    "tools": {"trtspec": "0.1.0", "tensorrt_llm": "1.2.1"},
    "quality": {"target": {"agreement": 0.99}},
    "packages": {"tensorrt-llm": "1.2.1", "zope.interface": "8"},
    "pulled": {"draft": {"tools": {"torch": "2.13.0"}, "packages": None}},
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two entries: a pair for the H200 and an older one for the torch backend."""
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "rank0.engine").write_bytes(bytes(range(256)) * 8)
    found = Store(str(tmp_path / "store"))
    content = describe(folder, ["."], lambda *_: None)
    for platform, created in ((Platform("torch"), "2026-01-01"), (H200, "2026-06-01")):
        entry = Entry("pair", "pair", platform, "c" * 64, f"{created}T00:00:00+00:00", *content, MANIFEST)
        push(found, entry, folder, lambda *_: None)
    return tmp_path / "store"


def run(*args: object) -> Result:
    return CliRunner().invoke(app, ["store", *map(str, args)])


def test_list(store: Path) -> None:
    lines = run("list", store).stdout.splitlines()
    assert lines[0].split() == ["digest", "name", "what", "for", "size", "created"]
    assert "pair  pair  SM 90, TensorRT 10.14.1.48, TensorRT-LLM 1.2.1  2.05 kB  2026-06-01" in lines[1]
    assert "torch" in lines[2]


@pytest.mark.parametrize("command", ["list", "prune", "verify"])
def test_a_folder_that_is_not_there_is_no_empty_store(tmp_path: Path, command: str) -> None:
    failed = run(command, tmp_path / "none").exception
    assert isinstance(failed, StoreError)
    assert failed.problem == "there is no such folder"
    (tmp_path / "none").mkdir()
    assert run(command, tmp_path / "none").exit_code == 0


def test_list_says_who_builds(store: Path) -> None:
    with leased(Store(str(store)), H200, "7" * 64, "target of llama", no_progress):
        listed = run("list", store)
        assert f"target of llama: {gethostname()}, process {getpid()}, builds it since 2" in listed.stderr
    assert "builds it" not in run("list", store).stderr


def test_show(store: Path) -> None:
    digest = json.loads(run("list", store, "--json").stdout)[1]["digest"]
    shown = run("show", store, digest[:8]).stdout
    assert "example/target @ " + "a" * 40 in shown
    rows = [line.split() for line in shown.splitlines()]
    assert [row for row in rows if row[0] in ("size", "files")] == [["size", "2.05", "kB"], ["files", "1"]]
    assert "rank0.engine" not in shown
    assert "rank0.engine" in run("show", store, digest[:8], "--files").stdout
    content = json.loads(run("show", store, "pair", "--json").stdout)
    assert content["platform"]["sm"] == 90
    assert content["files"]["rank0.engine"]["size"] == 2048
    assert content["manifest"] == MANIFEST


def test_the_bill_of_materials_is_cyclonedx(store: Path) -> None:
    text = run("show", store, "pair", "--sbom").stdout
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    components = {component["name"]: component for component in json.loads(text)["components"]}
    assert components.keys() == {
        "example/target",
        "./draft",
        "trtspec",
        "tensorrt-llm",
        "torch",
        "zope-interface",
    }
    assert components["example/target"]["purl"] == f"pkg:huggingface/example/target@{'a' * 40}"
    assert components["torch"]["purl"].startswith("pkg:pypi/torch@")
    assert components["trtspec"]["purl"].startswith("pkg:generic/trtspec@")
    assert components["example/target"]["components"][0]["hashes"][0]["content"] == "b" * 64


def test_pull(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Runtime("1.2.1", "10.14.1.48", (90,))
    monkeypatch.setattr("trtspec.cli.store.this_runtime", lambda: here)
    result = run("pull", store, "pair", "--output", tmp_path / "new")
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path}/new\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "new", "store"]
    assert (tmp_path / "new/rank0.engine").read_bytes() == (tmp_path / "made/rank0.engine").read_bytes()
    again = run("pull", store, "pair", "--output", tmp_path / "new")
    assert isinstance(again.exception, UnavailableError)


@pytest.mark.parametrize(
    ("here", "why"),
    [
        (Runtime("1.2.1", "10.14.1.48", (100,)), "it was built for SM 90, but this machine has SM 100"),
        (
            Runtime("1.1.0", "10.13.3.9", (90,)),
            "it was built by TensorRT-LLM 1.2.1, but this machine has 1.1.0",
        ),
        (Runtime("1.2.1", "10.15.0.1", (90,)), "it was built by TensorRT 10.14.1.48, but this machine has"),
    ],
)
def test_store_pull_refuses_an_engine_that_this_machine_could_not_load(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: Runtime, why: str
) -> None:
    monkeypatch.setattr("trtspec.cli.store.this_runtime", lambda: here)
    result = run("pull", store, "pair", "--output", tmp_path / "new")
    assert why in str(result.exception)
    assert not (tmp_path / "new").exists()


def test_a_folder_is_used_again_also_while_the_store_cannot_be_reached(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtspec.cli.store.this_runtime", lambda: Runtime("1.2.1", "10.14.1.48", (90,)))
    digest, folder = json.loads(run("list", store, "--json").stdout)[0]["digest"], tmp_path / "cache" / "a"
    words = ("pull", store, digest, "--output", folder, "--reuse")
    assert run(*words).exit_code == 0
    store.rename(tmp_path / "elsewhere")
    again = run(*words)
    assert (again.exit_code, again.stdout) == (0, f"{folder}\n")
    assert f"{folder} was pulled before" in again.stderr
    (folder / "rank0.engine").unlink()
    assert isinstance(run(*words).exception, StoreError)
    assert isinstance(run("pull", store, digest, "--output", tmp_path / "b").exception, StoreError)


def test_a_name_that_is_not_there(store: Path) -> None:
    for name in ("other", "abcdef", ""):
        assert "no entry whose digest begins with it" in str(run("show", store, name).exception)


def test_prune(store: Path) -> None:
    said = run("prune", store, "--older-than", "0", "--keep", "1", "--dry-run")
    assert said.stderr.endswith("0 entries and 0 files of 0 B would go\n")
    gone = json.loads(run("prune", store, "--older-than", "0", "--json").stdout)
    assert len(gone["entries"]) == 2
    assert run("list", store, "--json").stdout == "[]\n"
    assert not [path for path in (store / "objects").rglob("*") if path.is_file()]


def test_a_prune_that_is_told_to_end_holds_up_no_push(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told_to_end(*_: object) -> None:
        assert list((store / "pruning").iterdir())
        handler = signal.getsignal(signal.SIGTERM)
        assert callable(handler)
        handler(signal.SIGTERM, None)

    monkeypatch.setattr(upkeep, "_look", told_to_end)
    assert run("prune", store).exit_code == 143
    assert not list((store / "pruning").iterdir())


@pytest.mark.parametrize(("option", "value"), [("--older-than", "1e12"), ("--grace", "1e9")])
def test_an_age_beyond_all_time_is_wrong_usage(store: Path, option: str, value: str) -> None:
    said = run("prune", store, option, value)
    assert said.exit_code == 2
    assert option in said.stderr


def test_verify_says_what_cannot_be_pulled(store: Path) -> None:
    whole = run("verify", store)
    assert (whole.exit_code, whole.stderr.endswith(", intact\n")) == (0, True)
    (chunk,) = (path for path in (store / "objects").rglob("*") if path.is_file())
    chunk.write_bytes(b"torn")
    content = json.loads((result := run("verify", store, "--json")).stdout)
    assert result.exit_code == 1
    assert "intact" not in result.stderr
    assert len(content["damaged"]) == 2
    assert chunk.name in content["findings"][0]["subject"]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense://user:secret@host/x", "fsspec has no file system nonsense"),
        ("gs://bucket/x", "pip install '.[gcs]'"),
    ],
)
def test_a_url_that_cannot_be_used(url: str, said: str) -> None:
    error = run("list", url).exception
    assert isinstance(error, (StoreError, UnavailableError))
    assert said in f"{error} {error.repair}"
    assert "secret" not in f"{error} {error.repair}"
