"""Reads the metrics of a server, in Prometheus's text format."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

from trtspec.base.errors import UnavailableError

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
    behind = f"?{urlencode(query)}" if query else ""
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        with closing(kind(parts.hostname or "", parts.port, timeout=_LATEST_S)) as connection:
            connection.request("GET", (parts.path.rstrip("/") or "/metrics") + behind)
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise UnavailableError(url, f"does not answer ({error})", repair) from error
    if answer.status != 200:
        raise UnavailableError(url, f"answers with status {answer.status}", repair)
    return text


def _plain(value: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], value)
