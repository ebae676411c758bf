"""`trtspec build --store` of several builders at once: each engine is built once, whoever is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.unit.pipeline.build import held_builder
from trtspec.cli.app import app
from trtspec.pipeline.store import lease
from trtspec.pipeline.store.lease import Builder, from_bytes
from trtspec.pipeline.store.store import Store

ROOT = Path(__file__).parents[4]
TRTSPEC = [sys.executable, "-m", "trtspec"]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "POLL_S", 0.05)


def builders(store: Path) -> list[Builder | None]:
    files = Store(str(store)).files
    return [from_bytes(files.read(name) or b"") for name in sorted(files.find("building"))]


def entries(store: Path) -> list[str]:
    return sorted(entry.role for entry in Store(str(store)).entries())


def build(recipe: Path, name: str, store: Path, *more: str) -> dict[str, Any]:
    args = ["build", recipe, "--output", recipe.parent / name, "--store", store, "--json", *more]
    result = CliRunner().invoke(app, list(map(str, args)))
    assert result.exit_code == 0, result.stderr
    content: dict[str, Any] = json.loads(result.stdout)
    return content


@contextmanager
def held(recipe: Path, store: Path, expiry_s: float) -> Iterator[subprocess.Popen[str]]:
    """Somebody who builds the first engine of the recipe for ever."""
    output = recipe.parent / "held"
    command = [sys.executable, "-m", held_builder.__name__, str(expiry_s), recipe, "--output", output]
    process = subprocess.Popen(
        [*map(str, command), "--store", str(store)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == "builds\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_two_builders_that_race_make_each_engine_once(pair_recipe: Path, store: Path) -> None:
    folders = [pair_recipe.parent / name for name in ("one", "other")]
    processes = [
        subprocess.Popen(
            [*TRTSPEC, "build", pair_recipe, "--output", folder, "--store", store, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for folder in folders
    ]
    ran = []
    for process in processes:
        answer, said = process.communicate(timeout=600)
        assert process.returncode == 0, said.decode()
        ran.append(json.loads(answer)["ran"])
    for role in ("target", "draft"):
        assert sum(f"build {role}" in steps for steps in ran) == 1
        assert sum(f"convert {role}" in steps for steps in ran) == 1
        assert sum(f"pull {role}" in steps for steps in ran) == 1
    assert entries(store) == ["draft", "pair", "target"]
    assert builders(store) == []


def test_a_builder_that_was_killed_frees_its_engines_by_expiry(pair_recipe: Path, store: Path) -> None:
    with held(pair_recipe, store, expiry_s=1.0) as process:
        leases = builders(store)
        assert {builder and builder.what for builder in leases} == {"target of pair", "draft of pair"}
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert "build target" in build(pair_recipe, "second", store)["ran"]
    assert entries(store) == ["draft", "pair", "target"]
    assert builders(store) == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_builder_that_is_told_to_end_frees_them_at_once(
    pair_recipe: Path, store: Path, number: signal.Signals, status: int
) -> None:
    with held(pair_recipe, store, expiry_s=3600.0) as process:
        process.send_signal(number)
        assert process.wait(240) == status
    assert all(builder and builder.released for builder in builders(store))
    assert "build target" in build(pair_recipe, "second", store)["ran"]


def test_who_waits_is_told_for_whom(pair_recipe: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept = list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("trtspec.cli.terminal.output._INTERVAL_S", 0.0)
    with held(pair_recipe, store, expiry_s=3600.0) as process:
        while not all(builder and "build" in builder.note for builder in builders(store)):
            assert process.poll() is None
        monkeypatch.setattr("trtspec.pipeline.store.lease.time.sleep", sleep)
        args = ["build", pair_recipe, "--output", pair_recipe.parent / "second", "--store", store]
        result = CliRunner().invoke(app, list(map(str, args)))
    assert result.exit_code == 130
    assert "of pair ..." in result.stderr
    assert f"process {process.pid}, builds it since " in result.stderr
    assert "(build target and build draft)" in result.stderr or "(build target)" in result.stderr
    # Nothing was done that the other does.
    assert not (pair_recipe.parent / "second" / "target").exists()
