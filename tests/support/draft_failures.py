"""How many drafts a coordinator did without, because the draft engine failed or took too long."""

from __future__ import annotations

from trtspec.serving.stats import Stats


def draft_failures(stats: Stats) -> int:
    return stats.fallbacks["draft_failed"] + stats.fallbacks["draft_timed_out"]
