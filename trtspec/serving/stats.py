"""The coordinator's counters since it started, which the Triton edge exports."""

from __future__ import annotations

from dataclasses import dataclass, field

from trtspec.serving.speculation import Speculation


@dataclass(slots=True)
class Stats:
    """Plain numbers; `running`, `waiting`, `longest_wait_s` and `draft_available` tell of now, the others of
    all the time.

    `running` completions are at work, `waiting` ones are on their way there. `refused` ones found no place,
    `timed_out` ones were not whole in time.
    """

    speculation: Speculation = field(default_factory=Speculation)
    draft_failures: int = 0
    draft_available: bool = True
    running: int = 0
    waiting: int = 0
    longest_wait_s: float = 0.0
    refused: int = 0
    timed_out: int = 0
