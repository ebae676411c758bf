"""Checks API keys, and keeps only their digests."""

from __future__ import annotations

import hashlib
import hmac
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from pathlib import Path

from trtspec.base.errors import UnavailableError
from trtspec.gateway.openai.errors import ApiError

_BEARER = "bearer "
_TENANT_LENGTH = 16
_BYTE_ORDER_MARKS = (BOM_UTF8, BOM_UTF16_LE, BOM_UTF16_BE)
_PRINTABLE = re.compile(rb"[ -~]+")


class Keys:
    """The keys that open the API; without any it is open to everybody who reaches it."""

    def __init__(self, keys: list[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    @classmethod
    def load(cls, path: Path) -> Keys:
        """Reads a file as `read_keys` does, and raises what it does."""
        return cls(read_keys(path))

    def tenant(self, authorization: str | None) -> str:
        """Returns a name for the sender of this `Authorization`; empty if no keys are required.

        The name reveals nothing about the key. Raises `ApiError` 401 for a missing or wrong key.
        """
        if not self._digests:
            return ""
        said = authorization or ""
        if not said.lower().startswith(_BEARER):
            message = "no API key was sent; send it as: Authorization: Bearer KEY"
            raise ApiError(401, message, code="invalid_api_key")
        given = _digest(said[len(_BEARER) :].strip())
        # All of them are compared, so that the time reveals nothing.
        if not sum(hmac.compare_digest(given, known) for known in self._digests):
            raise ApiError(401, "the API key is not one of this server's", code="invalid_api_key")
        return hashlib.sha256(given).hexdigest()[:_TENANT_LENGTH]


def read_keys(path: Path) -> list[str]:
    """Reads a file with a key a line; empty lines and those that begin with # do not count.

    Raises OSError and ValueError, whose message contains no key. A key that is not printable ASCII is
    refused: no header can carry it.
    """
    content = path.read_bytes()
    if content.startswith(_BYTE_ORDER_MARKS):
        raise ValueError(
            "begins with a byte order mark, which would be part of the first key; save the file without it"
        )
    keys = []
    for number, line in enumerate(content.splitlines(), 1):
        key = line.strip()
        if not key or key.startswith(b"#"):
            continue
        if not _PRINTABLE.fullmatch(key):
            raise ValueError(f"line {number} has a key with characters that are not printable ASCII")
        keys.append(key.decode())
    if not keys:
        raise ValueError("has no key")
    return keys


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def check_keys(path: Path) -> list[str]:
    """Returns the API keys of a file; raises `UnavailableError` if it has none."""
    try:
        return read_keys(path)
    except (OSError, ValueError) as error:
        problem = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise UnavailableError(path, problem, "write one API key per line") from None
