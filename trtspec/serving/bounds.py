"""Defines the bounds of a deployment: the completions at once, and the time that anything may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServingBounds:
    """The bounds of a deployment; counts are of completions, times in seconds."""

    max_places: int
    """The largest number of completions that run at once."""
    kv_tokens: int | None = None
    """Together the running sequences have at most this many tokens. None if the number is unknown."""
    max_queue_size: int = 256
    """The largest number of further completions that wait for a slot."""
    max_queue_delay_s: float = 300.0
    """The longest time that a completion waits for a slot."""
    default_timeout_s: float = 600.0
    """The time limit of a completion whose request has none of its own."""
    draft_timeout_s: float = 5.0
    """The longest time that a round waits for its draft."""
    target_timeout_s: float = 120.0
    """A target that has requests and makes no progress for this long counts as dead."""
