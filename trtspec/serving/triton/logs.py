"""The format of the log: plain text, or a line of JSON for each message and each finished request.

The stderr of this process is part of the server's log.
"""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from trtspec.serving.completion import Delta
from trtspec.serving.errors import Busy, Cancelled, EngineFailure, NotFinite, RequestError, TimedOut
from trtspec.serving.stats import SpeculationCounts

log = logging.getLogger(__name__)

LOG_FORMAT = "TRTSPEC_LOG_FORMAT"
"""The environment variable of the format: `json`, or empty for plain text."""


def set_up(model: str) -> None:
    """Sets the format by the environment. The name `model` is in each line of JSON."""
    if os.environ.get(LOG_FORMAT) != "json":
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines(model))
    root = logging.getLogger("trtspec")
    root.handlers, root.propagate = [handler], False
    root.setLevel(logging.INFO)


class JsonLines(logging.Formatter):
    """Formats a message as a line of JSON, with its `fields`, if any."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self._model = model

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, timezone.utc)
        line = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "model": self._model,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


@dataclass(slots=True)
class RequestLog:
    """The log line of one request, without any of its text."""

    request_id: str = ""
    """The client's id of the request; empty if it has none."""
    began: float = field(default_factory=time.monotonic)
    first_s: float | None = None
    """The seconds to the first token; None before it."""
    failure: str = ""
    """One of `trtspec.serving.stats.FAILURES`, or empty."""
    endings: list[str] = field(default_factory=list)
    """The end reason of each completion of the request."""
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    counts: SpeculationCounts = field(default_factory=SpeculationCounts)

    def add(self, delta: Delta) -> None:
        """Notes a delta of the coordinator."""
        if self.first_s is None and delta.token_ids:
            self.first_s = time.monotonic() - self.began
        if (completion := delta.completion) is not None:
            self.endings.append(completion.end_reason.value)
            self.num_input_tokens = completion.num_input_tokens
            self.num_output_tokens += completion.num_output_tokens
            self.counts.num_spec_steps += completion.speculation.num_spec_steps
            self.counts.num_draft_tokens += completion.speculation.num_draft_tokens
            self.counts.num_accepted_draft_tokens += completion.speculation.num_accepted_draft_tokens

    def write(self) -> None:
        """Writes the line, at a level that is shown only in logs of JSON."""
        if log.isEnabledFor(logging.INFO):
            log.info("a request is over", extra={"fields": self.fields()})

    def fields(self) -> dict[str, Any]:
        """Returns the line's fields. Counts are of all completions of the request, times in seconds."""
        return {
            "request_id": self.request_id,
            "outcome": self.failure or ",".join(self.endings),
            "seconds": round(time.monotonic() - self.began, 6),
            "time_to_first_token_seconds": None if self.first_s is None else round(self.first_s, 6),
            "num_input_tokens": self.num_input_tokens,
            "num_output_tokens": self.num_output_tokens,
            "num_drafts": self.counts.num_spec_steps,
            "num_draft_tokens": self.counts.num_draft_tokens,
            "num_accepted_tokens": self.counts.num_accepted_draft_tokens,
        }


def kind_of(error: Exception) -> str:
    """Returns which of `FAILURES` an error is."""
    kinds: dict[type[Exception], str] = {
        RequestError: "invalid_request",
        Busy: "refused",
        TimedOut: "timed_out",
        Cancelled: "cancelled",
        NotFinite: "not_finite",
        EngineFailure: "engine_failure",
    }
    return next((name for kind, name in kinds.items() if isinstance(error, kind)), "internal")
