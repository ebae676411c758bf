"""Where a store is: its URL, and what of it may be shown."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

_HIDDEN = "***"


@dataclass(frozen=True, slots=True)
class Address:
    """A URL of fsspec, or a folder. Only its `str`, which hides secrets, may be printed, logged or stored."""

    url: str

    def __str__(self) -> str:
        return self.redact(self.url)

    def __repr__(self) -> str:
        return f"Address({self})"

    def redact(self, text: str) -> str:
        """The text without the password and the values of the query of this URL."""
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
        for url in self.url.split("::"):
            parts = urlsplit(url)
            userinfo = parts.netloc.rpartition("@")[0]
            password = userinfo.partition(":")[2]
            written = [word.partition("=")[2] for word in parts.query.split("&")]
            decoded = [unquote(password), *(value for _, value in parse_qsl(parts.query))]
            found.update([password, *written, *decoded])
        return sorted(filter(None, found), key=len, reverse=True)
