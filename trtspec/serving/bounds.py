"""Defines the bounds of a deployment: how many completions run or wait, and for how long."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServingBounds:
    """The bounds of a deployment. Times are in seconds."""

    max_places: int
    """The largest number of completions that run at once."""
    kv_tokens: int | None = None
    """The largest number of tokens of all running sequences together. None if it is unknown."""
    max_queue_size: int = 256
    """The largest number of further completions that wait for a slot."""
    max_queue_delay_s: float = 300.0
    """The longest time that a completion waits for a slot."""
    default_timeout_s: float = 600.0
    """The time limit of a completion whose request names none."""
    draft_timeout_s: float = 5.0
    """The longest time that a round waits for its draft."""
    target_timeout_s: float = 120.0
    """A target that has requests and makes no progress for this long is declared lost."""
