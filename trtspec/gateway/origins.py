"""Keeps web pages from a server that only this machine is to reach. No I/O.

A page may send a form or plain text to any address without asking ("simple" requests of
https://fetch.spec.whatwg.org), and its name may come to point to 127.0.0.1, which makes the server's answers
its own. Browsers tell the page in `Origin`, and the name in `Host`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from trtspec.gateway.ports import is_loopback

_SENT_UNASKED = {"application/x-www-form-urlencoded", "multipart/form-data", "text/plain"}


@dataclass(frozen=True, slots=True)
class Origins:
    """The names and pages that may use a server: all, unless it listens on the loopback."""

    host: str = ""
    """The address that the server listens on."""
    allowed: tuple[str, ...] = ()
    """The host names that may use it besides this machine's, or URLs with them; `*` is any."""

    def problem(self, host: str | None, origin: str | None) -> str | None:
        """Returns the problem with a request that has these headers; None if it may come in."""
        for header, said in (("Host", host), ("Origin", origin)):
            if said and self._is_guarded and not _is_known(said, self.host, self.allowed):
                return f"the {header} {said[:80]!r} is not of this machine; to allow it: --allowed-host"
        return None

    def type_problem(self, content_type: str) -> str | None:
        """Returns the problem with the type of a body; None if it may be read as JSON."""
        if self._is_guarded and content_type.partition(";")[0].strip().lower() in _SENT_UNASKED:
            return "the body must be JSON: send the header Content-Type: application/json"
        return None

    @property
    def _is_guarded(self) -> bool:
        return is_loopback(self.host) and "*" not in self.allowed


EVERYBODY = Origins()


@lru_cache(256)
def _is_known(said: str, listens_on: str, allowed: tuple[str, ...]) -> bool:
    try:
        name, *more = (urlsplit(each if "//" in each else f"//{each}").hostname for each in (said, *allowed))
        return bool(name) and (name in {"localhost", listens_on, *more} or ip_address(name or "").is_loopback)
    except ValueError:
        return False
