"""What a URL holds that nobody may see, and stores that cannot be used."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import pytest

from trtspec.base.errors import StoreError, UnavailableError
from trtspec.base.extras import how_to_install
from trtspec.pipeline.store.files import StoreAddress
from trtspec.pipeline.store.store import Store


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/folder", "s3://bucket/folder"),
        ("/srv/engines", "/srv/engines"),
        ("sftp://me:pa%24s@host/folder", "sftp://me:***@host/folder"),
        ("https://host/x?token=abc&sig=d%2Fe", "https://host/x?token=***&sig=***"),
        ("simplecache::s3://key:secret@bucket/x", "simplecache::s3://key:***@bucket/x"),
        ("sftp://me@host:22/engines@v1", "sftp://me@host:22/engines@v1"),
        ("sftp://me@[fe80::1:2]:22/x", "sftp://me@[fe80::1:2]:22/x"),
        (
            "abfs://container@account.dfs.core.windows.net/x",
            "abfs://container@account.dfs.core.windows.net/x",
        ),
        ("hdfs://one:8020,two:8020/x", "hdfs://one:8020,two:8020/x"),
        ("https://host:8443/engines@v1", "https://host:8443/engines@v1"),
        ("https://geheim@host/x", "https://***@host/x"),
        ("HTTPS://geheim:@host/x", "HTTPS://***:@host/x"),
        ("simplecache::https://geheim:x-oauth-basic@host/x", "simplecache::https://***@host/x"),
        ("sftp://me:ge#he?i/m@host/x", "sftp://me:***@host/x"),
        ("sftp://me:ge@he/im@host/x", "sftp://me:***@host/x"),
        ("sftp://me:ge::heim@host/x", "sftp://me:***@host/x"),
        ("sftp://me@firm:ge/heim@host/x", "sftp://me@firm:***@host/x"),
        ("sftp://me:geheim@[fe80::1:2]/x", "sftp://me:***@[fe80::1:2]/x"),
        ("s3://[bucket/x?sig=geheim", "s3://[bucket/x?sig=***"),
    ],
)
def test_a_store_address_hides_the_secrets_of_its_url(url: str, shown: str) -> None:
    address = StoreAddress(url)
    assert str(address) == shown
    assert url == shown or url not in repr(address)


def test_secrets_are_found_decoded_too() -> None:
    address = StoreAddress("sftp://me:pa%24s@host/x?sig=d%2Fe")
    assert address.redact("login failed: pa$s, pa%24s, d/e") == "login failed: ***, ***, ***"


@pytest.mark.parametrize("password", ["geheim", "geheim#1", "geheim/1"])
def test_a_failure_says_nothing_of_the_password(password: str) -> None:
    url = f"ftp://me:{password}@127.0.0.1:1/engines"
    with pytest.raises(StoreError) as failure:
        Store(url).entries()
    assert "geheim" not in "".join(traceback.format_exception(failure.value))
    assert "ftp://me:***@127.0.0.1:1/engines" in str(failure.value)


@pytest.mark.parametrize(
    ("url", "package", "wanted"),
    [
        (
            "gs://bucket/x",
            "gcsfs",
            how_to_install("gcs").removeprefix("pip install "),
        ),
        ("az://container/x", "adlfs", "adlfs"),
        ("sftp://host/x", "paramiko", "paramiko"),
    ],
)
def test_a_package_that_is_missing(
    url: str, package: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "fsspec.implementations.sftp", raising=False)
    with pytest.raises(UnavailableError) as failure:
        Store(url)
    assert failure.value.repair == f"pip install {wanted}"


def test_a_protocol_that_nobody_knows() -> None:
    with pytest.raises(UnavailableError, match="fsspec has no file system s4"):
        Store("s4://bucket/x")


def test_a_url_that_nobody_can_read() -> None:
    with pytest.raises(StoreError, match=r"s3://\[bucket/x: cannot be opened"):
        Store("s3://[bucket/x")


def test_a_bucket_that_is_not_there(s3_url: str) -> None:
    store = Store(f"{s3_url.rpartition('/')[0]}-other/store")
    with pytest.raises(StoreError, match="its bucket or folder does not"):
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
