"""What commands say of disks and buckets without room, and of those that can only be read.

The disks are real ones of some kilobytes, in a mount namespace of a command's own.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support import s3
from trtspec.base.errors import StoreError
from trtspec.pipeline.store.store import Store

TRTSPEC = f"{sys.executable} -m trtspec"
_MINE = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-ec")
_CAN = subprocess.run([*_MINE, "mount -t tmpfs none /mnt"], capture_output=True, check=False).returncode == 0
needs_mounts = pytest.mark.skipif(not _CAN, reason="nobody may mount here")


def said_on(disk: Path, options: str, command: str) -> str:
    """What a command says that fails, while a disk of its own is mounted on a folder."""
    disk.mkdir()
    script = f"mount -t tmpfs -o {options} none {disk}; {TRTSPEC} {command}"
    done = subprocess.run([*_MINE, script], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stderr


@needs_mounts
def test_a_push_to_a_full_disk_says_that_it_is_full(pair_recipe: Path, tmp_path: Path) -> None:
    build = f"{tmp_path}/build"
    subprocess.run(
        [*TRTSPEC.split(), "build", pair_recipe, "--output", build], capture_output=True, check=True
    )
    said = said_on(
        tmp_path / "disk", "size=64k", f"store push {tmp_path}/disk/store {pair_recipe} --output {build}"
    )
    assert f"{tmp_path}/disk/store: is full: " in said
    assert "No space left on device" in said
    assert "trtspec store prune" in said
    assert "credentials" not in said


@needs_mounts
def test_a_build_says_how_little_room_a_small_disk_has(pair_recipe: Path, tmp_path: Path) -> None:
    said = said_on(tmp_path / "disk", "size=64k", f"build {pair_recipe} --output {tmp_path}/disk/out")
    assert f"kB, but 65.5 kB are free in {tmp_path}/disk" in said
    assert "0.0" not in said


@needs_mounts
def test_a_build_says_that_its_output_can_only_be_read(pair_recipe: Path, tmp_path: Path) -> None:
    said = said_on(tmp_path / "disk", "ro,size=64k", f"build {pair_recipe} --output {tmp_path}/disk/out")
    assert f"{tmp_path}/disk: is on a disk that can only be read" in said
    assert "choose another --output" in said


@needs_mounts
def test_a_store_that_can_only_be_read_says_who_must_write_there(pair_recipe: Path, tmp_path: Path) -> None:
    build = f"build {pair_recipe} --output {tmp_path}/out --store {tmp_path}/disk/store"
    said = said_on(tmp_path / "disk", "ro,size=64k", build)
    assert "Read-only file system" in said
    assert "let user 0 write there, or use another folder" in said


class FullBucket(BaseHTTPRequestHandler):
    """Answers as MinIO does whose disks are full (cmd/api-errors.go: ErrStorageFull)."""

    protocol_version = "HTTP/1.1"  # clients ask to continue before they send

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = (
            b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>XMinioStorageFull</Code><Message>"
            b"Storage backend has reached its minimum free drive threshold. Please delete a few objects to "
            b"proceed.</Message><Resource>/b/o</Resource></Error>"
        )
        self.send_response(507)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def full_bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), FullBucket) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name, value in s3.credentials(f"http://127.0.0.1:{server.server_port}").items():
            monkeypatch.setenv(name, value)
        yield "s3://engines/store"
        server.shutdown()


def test_a_full_bucket_says_that_it_is_full(full_bucket: str) -> None:
    with pytest.raises(StoreError, match=r"is full: objects/a: .*minimum free drive threshold") as caught:
        Store(full_bucket).files.write("objects/a", b"engine")
    assert "trtspec store prune" in str(caught.value.repair)
