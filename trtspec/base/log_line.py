"""A line of a log, in JSON: the form in which the models log, for what others say."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone

# Triton's: I1122 23:25:47.123456 1 http_server.cc:4692] "Started HTTPService at 0.0.0.0:8000"
_TRITONS = re.compile(r'([IWEF])\d{4} [\d:.]+ \d+ ([\w.]+:\d+)\] ?"?(.*?)"?$')
# [TensorRT-LLM][ERROR] …, or [11/21/2026-07:30:00] [TRT-LLM] [E] …
_LLMS = re.compile(r"(?:\[[\d/:-]+\] )?\[(?:TensorRT-LLM|TRT-LLM|TRT)\] ?\[([VIWEF])\w*\]")
_LEVELS = {"V": "debug", "I": "info", "W": "warning", "E": "error", "F": "critical"}


def log_line(level: str, logger: str, message: str, **fields: str) -> str:
    """Returns a line of JSON that is of now."""
    time = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    said = {"time": time, "level": level, "logger": logger, "message": message, **fields}
    return json.dumps(said, ensure_ascii=False)


def as_json(line: str, logger: str) -> str:
    """Returns a line of a server's log as JSON, and as it is if it is JSON already."""
    if line.startswith("{") and _is_json(line):
        return line
    if found := _TRITONS.fullmatch(line):
        return log_line(_LEVELS[found[1]], logger, found[3], source=found[2])
    if found := _LLMS.match(line):
        return log_line(_LEVELS[found[1]], logger, line)
    return log_line("info", logger, line)


def _is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
