"""The format of the log: plain text, or a line of JSON for each message and each finished request.

The stderr of this process is part of the server's log.
"""

from __future__ import annotations

import json
import logging
import os
from datetime import datetime, timezone

LOG_FORMAT = "TRTSPEC_LOG_FORMAT"
"""The environment variable of the format: `json`, or empty for plain text."""

_ROOT = "trtspec"


def set_up(model: str) -> None:
    """Sets the format by the environment. The name `model` is in each line of JSON."""
    if os.environ.get(LOG_FORMAT) != "json":
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines(model))
    root = logging.getLogger(_ROOT)
    root.handlers, root.propagate = [handler], False
    root.setLevel(logging.INFO)


class JsonLines(logging.Formatter):
    """Formats a message as a line of JSON, with its `fields`, if any."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self._model = model

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, timezone.utc)
        line = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "model": self._model,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
