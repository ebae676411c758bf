"""The bounds of a deployment: how many completions at once, and how long anything may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServingBounds:
    """The bounds of a deployment; counts are of completions, times in seconds.

    At most `max_places` run at once, and only as many texts as fit `kv_tokens` together, where that is known;
    `max_queue_size` more wait for a place, each for `max_queue_delay_s` at most. A completion whose request
    has no time limit of its own gets `default_timeout_s`. A round waits `draft_timeout_s` for its draft. A
    target that has requests and makes no progress for `target_timeout_s` counts as dead.
    """

    max_places: int
    kv_tokens: int | None = None
    max_queue_size: int = 256
    max_queue_delay_s: float = 300.0
    default_timeout_s: float = 600.0
    draft_timeout_s: float = 5.0
    target_timeout_s: float = 120.0
