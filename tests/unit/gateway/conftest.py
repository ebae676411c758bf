"""The loop on which the ports are tried: uvloop's, on which they run in production.

Its transports are none of asyncio's classes, it hangs up in another way, and it calls back in another order.
"""

from __future__ import annotations

import pytest
import uvloop


@pytest.fixture(autouse=True)
def production_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has `asyncio.run` make the loops that `uvloop.run` would."""
    monkeypatch.setattr("asyncio.events.new_event_loop", uvloop.new_event_loop)
