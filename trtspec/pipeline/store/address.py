"""Holds the URL of a store, and hides its secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote

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
