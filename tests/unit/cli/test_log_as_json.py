"""Lines of logs as JSON."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest

from trtspec.cli.deploy import as_json


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            'I1122 23:25:47.123456 4711 http_server.cc:4692] "Started HTTPService at 0.0.0.0:8000"',
            {
                "level": "info",
                "message": "Started HTTPService at 0.0.0.0:8000",
                "source": "http_server.cc:4692",
            },
        ),
        (
            "W1122 23:25:47.123456 1 pinned_memory_manager.cc:273] Unable to allocate",
            {"level": "warning", "message": "Unable to allocate", "source": "pinned_memory_manager.cc:273"},
        ),
        ("E1122 23:25:47.1 1 server.cc:1] x", {"level": "error", "message": "x", "source": "server.cc:1"}),
        ("[TensorRT-LLM][ERROR] out of memory", {"level": "error"}),
        ("[11/21/2026-07:30:00] [TRT-LLM] [W] odd", {"level": "warning"}),
        ("Signal (15) received.", {"level": "info", "message": "Signal (15) received."}),
        ("{no JSON", {"level": "info", "message": "{no JSON"}),
        ('"a text\x1b[2J\u0085"', {"message": '"a text\x1b[2J\u0085"'}),
    ],
)
def test_a_line_of_a_server(line: str, expected: dict[str, str]) -> None:
    said = json.loads(as_json(line, "tritonserver"))
    assert said.items() >= {"logger": "tritonserver", "message": line, **expected}.items()
    age = datetime.now(timezone.utc) - datetime.fromisoformat(said["time"].replace("Z", "+00:00"))
    assert 0 <= age.total_seconds() < 10


def test_a_log_line_that_is_already_json_stays_unchanged() -> None:
    line = '{"time": "2026-01-01T00:00:00.000Z", "level": "info",  "message": "a request is over"}'
    assert as_json(line, "tritonserver") == line
