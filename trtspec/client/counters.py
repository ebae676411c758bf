"""Computes the growth of a server's counters between two scrapes of its metrics; pure.

Names are trtspec's, and those of vLLM's server where it has the same thing.
"""

from __future__ import annotations

from collections.abc import Iterable

from trtspec.client.endpoint import DraftCounts
from trtspec.client.scrape import Scrape

VERIFICATIONS = "spec_decode_num_drafts"
_DRAFTED = "spec_decode_num_draft_tokens"
_ACCEPTED = "spec_decode_num_accepted_tokens"


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
    return (f"trtspec:{name}", f"vllm:{name}", f"vllm:{name}_total")
