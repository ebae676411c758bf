"""Stores: a folder, fsspec's memory, and an S3 server in a process of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import s3
from trtspec.pipeline.store.store import Content, Entry, Platform, Store
from trtspec.pipeline.store.transfer import describe

H200 = Platform("tensorrt_llm", 90, "10.14.1.48", "1.2.1")


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The URL of an S3 server."""
    with s3.serve() as url:
        yield url


@pytest.fixture
def s3_url(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket of its own, for this process and those that it starts."""
    for name, value in s3.credentials(s3_server).items():
        monkeypatch.setenv(name, value)
    return s3.new_bucket(s3_server)


@pytest.fixture(params=["folder", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        return str(request.getfixturevalue("s3_url"))
    return str(tmp_path / "store") if request.param == "folder" else f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def store(url: str) -> Store:
    return Store(url)


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """An engine directory of two ranks with chunks in common, an empty file and an empty folder."""
    folder = tmp_path / "engine"
    (folder / "1").mkdir(parents=True)
    (folder / "config.json").write_text('{"version": "1.2.1"}')
    (folder / "rank0.engine").write_bytes(bytes(range(256)) * 41)
    (folder / "rank1.engine").write_bytes(bytes(range(256)) * 40 + b"another end")
    (folder / "empty").touch()
    return folder


def entry_of(
    folder: Path,
    *,
    role: Content = "target",
    name: str = "llama",
    platform: Platform = H200,
    key: str = "1" * 64,
    created: str = "2026-01-01T00:00:00+00:00",
) -> Entry:
    files, folders = describe(folder, ["."], lambda *_: None)
    return Entry(role, name, platform, key, created, files, folders, {"tools": {}})


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtspec.pipeline.store.transfer.CHUNK", 1024)


def tree(folder: Path) -> dict[str, bytes | None]:
    """What is below a folder; None for a folder."""
    items = sorted(folder.rglob("*"))
    return {str(item.relative_to(folder)): None if item.is_dir() else item.read_bytes() for item in items}
