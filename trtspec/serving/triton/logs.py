"""The form of the log: plain words, or one line of JSON for each message and each request that is over.

What this process writes to stderr is in the log of the server.
"""

from __future__ import annotations

import json
import logging
import os
from datetime import datetime, timezone

LOG_FORMAT = "TRTSPEC_LOG_FORMAT"
"""The environment variable that says which; `json`, or nothing for words."""

_ROOT = "trtspec"


def set_up(model: str) -> None:
    """Has this process log in the form that its environment asks for; `model` is in each line of JSON."""
    if os.environ.get(LOG_FORMAT) != "json":
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines(model))
    root = logging.getLogger(_ROOT)
    root.handlers, root.propagate = [handler], False
    root.setLevel(logging.INFO)


class JsonLines(logging.Formatter):
    """Makes a line of JSON of a message, with the `fields` that it has, if any."""

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
