"""Reads and writes small files of a store at a URL, on any file system that fsspec knows.

A file is whole or not there, and an error has one line.
"""

from __future__ import annotations

import errno
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any
from urllib.parse import parse_qsl, unquote

from trtspec.base.errors import StoreError, UnavailableError
from trtspec.base.extras import EXTRAS, not_installed
from trtspec.base.files import FULL

_HIDDEN = "***"
_TAKE_TOKENS = ("http", "https")
_HOST = re.compile(r"([^:]*|\[[^]]*\])(:\d*)?")
# What follows "::" and is no other part of a chain belongs to an IPv6 address, or to a password.
_CHAIN = re.compile(r"::(?=\w[\w.+-]*(?:::|://))")


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """A URL of fsspec, or a folder. Only its `str`, which hides secrets, may be printed, logged or stored.

    Secrets are the password and the values of the query. A name before the host without a password is one for
    http and https alone, whose servers take a token there (`https://TOKEN@host`, `https://TOKEN:@host`);
    beside a password it is hidden there too, since either may be the token. Elsewhere it is the user (sftp,
    ssh, ftp), a key's public name (s3) or a container (abfs): nobody gets in by that alone, and jobs need it.
    """

    url: str

    def __str__(self) -> str:
        return self.redact(self.url)

    def __repr__(self) -> str:
        return f"Address({self})"

    @property
    def has_secret(self) -> bool:
        """True if the URL may not be shown as it is."""
        return str(self) != self.url

    def redact(self, text: str) -> str:
        """The text without the secrets of this URL."""
        for secret in self._secrets():
            text = text.replace(secret, _HIDDEN)
        return text

    @property
    def protocol(self) -> str:
        """The protocol of the URL; of a chain, such as `simplecache::s3://bucket`, the first."""
        return re.split("::|://", self.url, maxsplit=1)[0] if "://" in self.url else "file"

    def _secrets(self) -> list[str]:
        """The URL's secrets, as written and as decoded; the longest first, since one may hold another."""
        found = set[str]()
        for url in _CHAIN.split(self.url):
            query = url.partition("#")[0].partition("?")[2]
            written = [word.partition("=")[2] for word in query.split("&")]
            credentials = list(_credentials(url))
            found.update([*credentials, *map(unquote, credentials)])
            found.update([*written, *(value for _, value in parse_qsl(query))])
        return sorted(filter(None, found), key=len, reverse=True)


def _credentials(url: str) -> Iterator[str]:
    """The secrets before the host of a URL.

    A password may have characters in it that ought to be escaped, such as # and /, at which a parser ends the
    host. So where there is one, or a port that is no number, all up to the last @ is hidden; and that port,
    which errors name.
    """
    scheme, _, rest = url.partition("://")
    userinfo, _, host = re.split("[/?#]", rest, maxsplit=1)[0].rpartition("@")
    longest, found = rest.rpartition("@")[0], {userinfo}
    if ":" in userinfo:
        found.add(longest)
    elif longest and not _HOST.fullmatch(host):
        found.update([longest, host])
    for each in found:
        name, _, password = each.partition(":")
        yield password
        if scheme.lower() in _TAKE_TOKENS:
            yield each if password else name


TEMPORARY = "tmp"
# Protocols on which a file appears only when it is whole; on others it is written elsewhere and renamed.
_WHOLE = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "memory"})
# Those of them, and others, that create a file only if it is not there; trusted once they have refused to.
_EXCLUSIVE = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "file", "local"})
_LOCAL = frozenset({"file", "local"})
_MODIFIED = ("LastModified", "last_modified", "mtime", "updated", "modified", "created")


@dataclass(frozen=True, slots=True)
class Stat:
    """The size and age of a file."""

    size: int
    """In bytes."""
    modified: datetime | None
    """The time when the file was written; None if the file system does not tell."""


class Files:
    """Files by their name below an address; threads may share it.

    Every method raises StoreError if the file system fails. Opening raises UnavailableError too, for a
    protocol that fsspec does not know or whose package is not installed.
    """

    def __init__(self, address: StoreAddress) -> None:
        self.address = address
        self._system, self._root = _open(address)
        self._whole = address.protocol in _WHOLE

    def has_root(self) -> bool:
        """Returns False for a folder of this machine that is not there."""
        return self.address.protocol not in _LOCAL or os.path.isdir(self._root)

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if it is not there."""
        with self._explained(name):
            try:
                return bytes(self._system.cat_file(self._path(name)))
            except FileNotFoundError:
                return None

    def write(self, name: str, content: bytes) -> None:
        """Writes a file, and replaces one of the same name."""
        with self._explained(name):
            if self._whole:
                self._system.pipe_file(self._path(name), content)
                return
            made = self._path(f"{TEMPORARY}/{uuid.uuid4().hex}")
            for path in (made, self._path(name)):
                self._system.makedirs(path.rpartition("/")[0], exist_ok=True)
            try:
                with self._system.open(made, "wb") as stream:
                    stream.write(content)
                    stream.flush()
                    if self.address.protocol == "file":
                        os.fsync(stream.fileno())
                self._system.mv(made, self._path(name))
            except BaseException:
                if self._system.exists(made):
                    self._system.rm_file(made)
                raise

    def create(self, name: str, content: bytes) -> bool | None:
        """Writes a file that is not there; of all who do so at once one gets True, the others False.

        None if the file system cannot do that, or did not answer: nobody knows then whose the file is.
        `content` must differ from what others write.
        """
        if self.address.protocol not in _EXCLUSIVE:
            return None
        try:
            self._create(name, content)
        except FileExistsError:
            # A request whose answer was lost is sent again, and then refused.
            return self.read(name) == content
        except Exception:
            return None  # One that has failed for another reason fails again when the caller writes.
        try:
            self._create(name, content)
        except FileExistsError:
            return True
        except Exception:
            return None
        self.remove([name])  # This server does not know the condition.
        return None

    def now(self) -> datetime | None:
        """The time of the file system's own clock; None if the machines that write tell the time."""
        if not self._whole:
            return None
        name = f"{TEMPORARY}/{uuid.uuid4().hex}"
        self.write(name, b"")
        with self._explained(name):
            modified = _modified(self._system.info(self._path(name)))
        self.remove([name])
        return modified

    def size(self, name: str) -> int | None:
        """The size of a file in bytes; None if it is not there."""
        with self._explained(name):
            try:
                return int(self._system.info(self._path(name))["size"])
            except FileNotFoundError:
                return None

    def find(self, folder: str) -> dict[str, Stat]:
        """Every file below a folder, by name; the folder need not be there."""
        with self._explained(folder):
            if self.address.protocol in _LOCAL:
                stats = dict(_stats_below(self._path(folder)))
            else:
                self._system.invalidate_cache()
                found = _found(self._system, self._path(folder))
                stats = {path: Stat(int(info["size"]), _modified(info)) for path, info in found}
        start = len(self._root) + 1
        return {path[start:]: stat for path, stat in stats.items()}

    def remove(self, names: Iterable[str]) -> None:
        """Removes files; one that is gone already is no failure."""
        for name in names:
            with self._explained(name):
                try:
                    self._system.rm_file(self._path(name))
                except FileNotFoundError:
                    continue

    def _create(self, name: str, content: bytes) -> None:
        """Raises FileExistsError if the file is there."""
        path = self._path(name)
        if self._whole:
            self._system.pipe_file(path, content, mode="create")
            return
        self._system.makedirs(path.rpartition("/")[0], exist_ok=True)
        with self._system.open(path, "xb") as stream:
            stream.write(content)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        """Turns the exceptions that each file system has into StoreError, without secrets of the URL."""
        try:
            yield
        except (StoreError, UnavailableError):
            raise
        except FileNotFoundError:
            problem = f"{name} does not exist, or its bucket or folder does not"
            raise StoreError(str(self.address), problem, "trtspec store list shows what is there") from None
        except Exception as error:
            said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            problem = self.address.redact(said).strip().splitlines()[0] if said.strip() else ""
            found = f"{name}: {problem or type(error).__name__}"
            number = error.errno if isinstance(error, OSError) else None
            if number in FULL or _FULL.search(said):
                raise StoreError(str(self.address), f"is full: {found}", _ROOM) from None
            is_local = self.address.protocol in _LOCAL and number in _LOCKED
            repair = f"let user {os.getuid()} write there, or use another folder" if is_local else _ACCESS
            raise StoreError(str(self.address), found, repair) from None


def _open(address: StoreAddress) -> tuple[Any, str]:
    """The file system of an address and the path in it; raises UnavailableError or StoreError."""
    from fsspec import get_filesystem_class, url_to_fs
    from fsspec.registry import known_implementations

    protocol = address.protocol
    try:
        get_filesystem_class(protocol)
    except ValueError:
        known = "use a folder, or a URL such as s3://bucket/folder or gs://bucket/folder"
        raise UnavailableError(str(address), f"fsspec has no file system {protocol}", known) from None
    except ImportError:
        package = str(known_implementations[protocol]["class"]).partition(".")[0]
        if package == "fsspec":
            package = _OTHERS.get(protocol, package)
        if package in EXTRAS:
            raise not_installed(package, f"{protocol}://", EXTRAS[package]) from None
        problem = f"is not installed, but {protocol}:// needs it"
        raise UnavailableError(package, problem, f"pip install {package}") from None
    try:
        # A listing that is remembered would not show what another machine has written.
        system, root = url_to_fs(address.url, skip_instance_cache=True, use_listings_cache=False)
    except Exception as error:
        problem = f"cannot be opened: {address.redact(str(error))}"
        raise StoreError(str(address), problem, _ACCESS) from None
    return system, root.rstrip("/")


def _stats_below(folder: str) -> Iterator[tuple[str, Stat]]:
    """Yields every file below a folder of this machine, by its path.

    Raises OSError for a folder that cannot be listed, which fsspec takes for an empty one; a prune would
    remove what the entries in it need. What is gone by now is left out.
    """
    for parent, _, names in os.walk(folder, onerror=_raise_unless_gone, followlinks=True):
        for name in names:
            path = os.path.join(parent, name)
            with suppress(FileNotFoundError):
                stat = os.stat(path)
                yield path, Stat(stat.st_size, datetime.fromtimestamp(stat.st_mtime, timezone.utc))


def _found(system: Any, folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields every file below a folder, by its path, with what the file system tells of it.

    Where fsspec itself would go from folder to folder, it takes one that cannot be listed for an empty one.
    """
    from fsspec import AbstractFileSystem

    if getattr(system.find, "__func__", None) is not AbstractFileSystem.find:
        yield from system.find(folder, detail=True).items()
        return
    try:
        listing = system.ls(folder, detail=True)
    except FileNotFoundError:
        return
    for info in listing:
        if info["type"] != "directory":
            yield info["name"], info
        elif info["name"].rstrip("/") != folder:
            yield from _found(system, info["name"].rstrip("/"))


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


# The packages that fsspec's own implementations import, by protocol.
_OTHERS = {
    "sftp": "paramiko",
    "ssh": "paramiko",
    "smb": "smbprotocol",
    "http": "aiohttp",
    "https": "aiohttp",
    "hdfs": "pyarrow",
    "webhdfs": "requests",
}


def _modified(info: Mapping[str, Any]) -> datetime | None:
    value = next((info[key] for key in _MODIFIED if info.get(key) is not None), None)
    if isinstance(value, (int, float)):
        return datetime.fromtimestamp(value, timezone.utc)
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    return value if value.tzinfo else value.replace(tzinfo=timezone.utc)


# What servers say that have no number for it: MinIO, Ceph, WebDAV.
_FULL = re.compile(
    "StorageFull|QuotaExceeded|Insufficient ?Storage|No space left|quota exceeded", re.IGNORECASE
)
_LOCKED = (errno.EROFS, errno.EACCES, errno.EPERM)
_ROOM = "free some space there, by trtspec store prune or otherwise, and run the same command again"
_ACCESS = "check the URL, and the credentials that this environment has for it"
