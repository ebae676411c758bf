"""What TensorRT-LLM says when something is wrong, as one line."""

from __future__ import annotations

import re

_LOG_PREFIX = "[TensorRT-LLM][ERROR] "
# `TllmException` adds the place in its own source, and a stack trace below it (common/tllmException.cpp).
_SOURCE = re.compile(r" \([^()]*:\d+\)$")


def one_line(error: object) -> str:
    """The text of an exception or of a response's `error_msg`, without source lines and stack trace."""
    lines = str(error).strip().splitlines()
    first = _SOURCE.sub("", lines[0]) if lines else ""
    return first.replace(_LOG_PREFIX, "") or f"TensorRT-LLM raised {type(error).__name__}"
