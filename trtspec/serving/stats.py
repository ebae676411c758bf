"""The coordinator's counters since it started, which the Triton edge exports."""

from __future__ import annotations

from dataclasses import dataclass, field

from trtspec.serving.speculation import Speculation


@dataclass(slots=True)
class Stats:
    """Plain numbers; only `active_requests` ever falls."""

    speculation: Speculation = field(default_factory=Speculation)
    draft_failures: int = 0
    active_requests: int = 0
