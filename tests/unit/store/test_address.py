"""What a URL holds that nobody may see, and stores that cannot be used."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import pytest

from trtspec.errors import StoreError, UnavailableError
from trtspec.store.address import Address
from trtspec.store.store import Store


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/folder", "s3://bucket/folder"),
        ("/srv/engines", "/srv/engines"),
        ("sftp://me:pa%24s@host/folder", "sftp://me:***@host/folder"),
        ("https://host/x?token=abc&sig=d%2Fe", "https://host/x?token=***&sig=***"),
        ("simplecache::s3://key:secret@bucket/x", "simplecache::s3://key:***@bucket/x"),
    ],
)
def test_what_is_shown_of_a_url(url: str, shown: str) -> None:
    address = Address(url)
    assert str(address) == shown
    assert url == shown or url not in repr(address)


def test_secrets_are_found_decoded_too() -> None:
    address = Address("sftp://me:pa%24s@host/x?sig=d%2Fe")
    assert address.redact("login failed: pa$s, pa%24s, d/e") == "login failed: ***, ***, ***"


def test_a_failure_says_nothing_of_the_password() -> None:
    url = "ftp://me:geheim@127.0.0.1:1/engines"
    with pytest.raises(StoreError) as failure:
        Store(url).entries()
    assert "geheim" not in "".join(traceback.format_exception(failure.value))
    assert "ftp://me:***@127.0.0.1:1/engines" in str(failure.value)


@pytest.mark.parametrize(
    ("url", "package"),
    [("gs://bucket/x", "gcsfs"), ("az://container/x", "adlfs"), ("sftp://host/x", "paramiko")],
)
def test_a_package_that_is_missing(url: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "fsspec.implementations.sftp", raising=False)
    with pytest.raises(UnavailableError) as failure:
        Store(url)
    assert failure.value.repair == f"pip install {package}"


def test_a_protocol_that_nobody_knows() -> None:
    with pytest.raises(UnavailableError, match="s4 is no file system"):
        Store("s4://bucket/x")


def test_a_bucket_that_is_not_there(s3_url: str) -> None:
    store = Store(f"{s3_url.rpartition('/')[0]}-other/store")
    with pytest.raises(StoreError, match="the bucket or folder is not"):
        store.files.write("x", b"")


def test_no_credentials(s3_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(StoreError, match="credentials"):
        Store(s3_url).files.write("x", b"")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="file"):
        Store(str(tmp_path / "file")).files.write("x", b"")
