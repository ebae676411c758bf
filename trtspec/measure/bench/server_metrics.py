"""Computes rates and shares from two scrapes of a server's metrics; pure."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.client.scrape import VERIFICATIONS, Growth, Scrape, names
from trtspec.measure.bench.result import DraftAcceptance, DraftFigures, MeanRoundTimes
from trtspec.serving.drafters.source import EARLIER

_PER_POSITION = "spec_decode_num_accepted_tokens_per_pos"
_QUERIES, _HITS = "prefix_cache_queries", "prefix_cache_hits"
_SGLANG = "sglang:prompt_tokens_total", "sglang:cached_tokens_total"
_MISSED, _REUSED = "trtllm_kv_cache_missed_blocks_total", "trtllm_kv_cache_reused_blocks_total"
_DRAFT_S, _VERIFY_S, _OVERHEAD_S = (f"round_{part}_seconds" for part in ("draft", "verification", "overhead"))
_SHARE = "trtspec:speculation_share"
_AT_WORK = ("num_requests_running", "num_requests_waiting")


@dataclass(frozen=True, slots=True)
class KvReuseShare:
    """Prompt tokens of the target, and how many of them its KV cache had; TensorRT-LLM counts blocks."""

    asked: float = 0.0
    found: float = 0.0

    def __add__(self, other: KvReuseShare) -> KvReuseShare:
        return KvReuseShare(self.asked + other.asked, self.found + other.found)

    @property
    def share(self) -> float | None:
        return self.found / self.asked if self.asked else None


class Meanwhile:
    """The growth of counters between two scrapes of one server."""

    def __init__(self, before: Scrape, after: Scrape) -> None:
        self._before, self._after, self._growth = before, after, Growth(before, after)

    @property
    def drafts(self) -> DraftFigures | None:
        """Returns what all requests drafted in between; None if nothing was drafted, or the server does not
        report it.
        """
        if not (found := self._growth.drafts):
            return None
        acceptance = DraftAcceptance(found.verifications, found.drafted, found.accepted, self._positions())
        return DraftFigures("metrics", acceptance)

    @property
    def round_times(self) -> MeanRoundTimes | None:
        """The mean times of rounds with a draft."""
        if not (rounds := self._growth.of(VERIFICATIONS)) or not self._growth.has(_DRAFT_S):
            return None
        draft, verify, overhead = (
            self._growth.of(name) / rounds for name in (_DRAFT_S, _VERIFY_S, _OVERHEAD_S)
        )
        return MeanRoundTimes(draft, verify, overhead)

    @property
    def kv_reuse(self) -> KvReuseShare:
        """The reuse of prefixes, by the names of SGLang 0.5.23 and TensorRT-LLM 1.3 too."""
        growth = self._growth
        if growth.has(_SGLANG[0]):
            return KvReuseShare(*map(growth.of, _SGLANG))
        if growth.has(_MISSED):
            found = growth.of(_REUSED)
            return KvReuseShare(growth.of(_MISSED) + found, found)
        labels = {"engine": "target"} if self._growth.has(_QUERIES, engine="target") else {}
        return KvReuseShare(self._growth.of(_QUERIES, **labels), self._growth.of(_HITS, **labels))

    @property
    def speculation_share(self) -> float:
        """The share of requests that had drafts: below 1 during a roll-out."""
        looks = (self._before, self._after)
        return min((share for look in looks for _, share in look.of(_SHARE)), default=1.0)

    @property
    def is_without_earlier_answers(self) -> bool:
        """True if the server reports that it drafted nothing from earlier answers."""
        return self._growth.has(VERIFICATIONS, origin=EARLIER) and not self._growth.of(
            VERIFICATIONS, origin=EARLIER
        )

    def _positions(self) -> tuple[int, ...]:
        found = {
            int(labels["position"])
            for name in names(_PER_POSITION)
            for labels, _ in self._after.of(name)
            if "position" in labels
        }
        counts = [round(self._growth.of(_PER_POSITION, position=str(position))) for position in sorted(found)]
        while counts and not counts[-1]:
            counts.pop()
        return tuple(counts)


def is_idle(scrape: Scrape) -> bool:
    """Says whether no request is running; trtspec's counters then include all requests."""
    return not any(scrape.total(each) for name in _AT_WORK for each in names(name))
