"""Reads the metrics of a server, in Prometheus's text format, and how they grow.

Names of counters are trtspec's, and those of vLLM's server where it has the same thing. A name with its
server's prefix (`sglang:…`, `trtllm_…`) stands for itself.
"""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

from trtspec.base.errors import UnavailableError
from trtspec.client.endpoint import DraftCounts

VERIFICATIONS = "spec_decode_num_drafts"
_DRAFTED = "spec_decode_num_draft_tokens"
_ACCEPTED = "spec_decode_num_accepted_tokens"

Labels = dict[str, str]
_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_LATEST_S = 10.0


@dataclass(frozen=True, slots=True)
class Scrape:
    """The values of one moment."""

    at: float
    """The time in seconds; any clock will do."""
    rows: tuple[tuple[str, Labels, float], ...]

    def of(self, name: str, **labels: str) -> Iterator[tuple[Labels, float]]:
        """Yields the values of a metric that have these labels, each with all its labels."""
        for found, given, value in self.rows:
            if found == name and labels.items() <= given.items():
                yield given, value

    def total(self, name: str, **labels: str) -> float:
        """Returns the sum of the values of a metric that have these labels; 0.0 for none."""
        return sum(value for _, value in self.of(name, **labels))


class Growth:
    """The growth of counters between two scrapes of one server."""

    def __init__(self, before: Scrape, after: Scrape) -> None:
        self._before, self._after = before, after

    def of(self, name: str, **labels: str) -> float:
        """Returns the growth; a server that was started anew in between counts from its start."""
        new, old = (
            sum(scrape.total(each, **labels) for each in names(name))
            for scrape in (self._after, self._before)
        )
        return new - old if new >= old else new

    def has(self, name: str, **labels: str) -> bool:
        """Says whether the server has such a counter."""
        return any(True for each in names(name) for _ in self._after.of(each, **labels))

    @property
    def drafts(self) -> DraftCounts | None:
        """Returns what all requests drafted in between, without a histogram.

        It is None if nothing was drafted, or the server does not report it.
        """
        if not (verifications := self.of(VERIFICATIONS)):
            return None
        return DraftCounts(round(verifications), round(self.of(_DRAFTED)), round(self.of(_ACCEPTED)), ())


def names(name: str) -> Iterable[str]:
    """Returns the names of a metric, at trtspec's servers and at vLLM's."""
    if name.startswith(("sglang:", "trtllm_")):
        return (name,)
    return (f"trtspec:{name}", f"vllm:{name}", f"vllm:{name}_total")


def parse(text: str, at: float) -> Scrape:
    """Returns the values of a text; other lines are ignored."""
    rows = []
    for line in text.splitlines():
        if found := _LINE.match(line):
            labels = {key: _plain(value) for key, value in _LABEL.findall(found[2] or "")}
            with suppress(ValueError):
                rows.append((found[1], labels, float(found[3])))
    return Scrape(at, tuple(rows))


def read(url: str, query: Mapping[str, str] | None = None) -> str:
    """Returns the text of the metrics at a URL, HOST:PORT alone too; raises `UnavailableError`.

    `query` is the part after the URL's question mark.
    """
    repair = "start a server with: trtspec deploy RECIPE, or name its metrics port with --url"
    try:
        status, text = _get(url, f"?{urlencode(query)}" if query else "")
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise UnavailableError(url, f"does not answer ({error})", repair) from error
    if status != 200:
        raise UnavailableError(url, f"answers with status {status}", repair)
    return text


def status_of(url: str) -> int | None:
    """Returns the status with which a server answers at a URL; None if it does not answer."""
    try:
        return _get(url)[0]
    except (OSError, ValueError, http.client.HTTPException):
        return None


def _get(url: str, behind: str = "") -> tuple[int, str]:
    parts = urlsplit(url if "//" in url else f"http://{url}")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    with closing(kind(parts.hostname or "", parts.port, timeout=_LATEST_S)) as connection:
        connection.request("GET", (parts.path.rstrip("/") or "/metrics") + behind)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")


def _plain(value: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], value)
