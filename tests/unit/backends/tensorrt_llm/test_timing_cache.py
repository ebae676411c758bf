from __future__ import annotations

from pathlib import Path

import pytest

from trtspec.backends.tensorrt_llm.engine_step import TimingCache

CACHE = TimingCache("1.2.1", "h200", "4096x14336-fp8-tp1")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRTSPEC_CACHE", str(tmp_path))
    return tmp_path / "timing/1.2.1-h200"


def test_the_first_build_writes_and_the_second_reads(folder: Path) -> None:
    with CACHE.options(folder) as options:
        assert options[0] == "--output_timing_cache"
        Path(options[1]).write_bytes(b"measured")
    with CACHE.options(folder) as options:
        assert options[:2] == ("--input_timing_cache", str(CACHE.file))
        assert CACHE.file.read_bytes() == b"measured"
    assert [file.name for file in folder.iterdir()] == ["4096x14336-fp8-tp1.cache"]


def test_a_build_that_fails_leaves_the_cache_as_it_was(folder: Path) -> None:
    CACHE.file.parent.mkdir(parents=True)
    CACHE.file.write_bytes(b"before")

    def fail() -> None:
        with CACHE.options(folder) as options:
            Path(options[-1]).write_bytes(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {CACHE.file.name: b"before"}


def test_a_build_that_writes_none_keeps_the_one_before(folder: Path) -> None:
    CACHE.file.parent.mkdir(parents=True)
    CACHE.file.write_bytes(b"before")
    with CACHE.options(folder):
        pass
    assert CACHE.file.read_bytes() == b"before"


def test_a_user_without_a_cache_folder_builds_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRTSPEC_CACHE", str(tmp_path / "file"))
    with CACHE.options(tmp_path) as options:
        assert options == ("--output_timing_cache", str(tmp_path / "model.cache"))
