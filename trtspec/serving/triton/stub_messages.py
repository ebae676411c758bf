"""Recognises the messages that Triton sends in place of a model whose process has ended, until Triton itself
ends.

Triton gives these errors the code INTERNAL, and over HTTP the status 400 like any error of a model. They are
those of the Python backend when it hands a request on (`ReceiveMessageFromStub` in `src/stub_launcher.cc`,
`SendMessageToStub` in `src/python_be.cc`), and when a model calls another one (`src/request_executor.cc`).
"""

from __future__ import annotations

import re

_ENDED = re.compile(
    r"Stub process .*is not healthy|Failed to obtain the health mutex|Model '[^']*' is not ready"
)

ENDED = "the model's process has ended"
"""The message that a client gets instead, with the status 503."""


def tells_end(message: str) -> bool:
    """Says whether an error tells that the process of a model has ended."""
    return _ENDED.search(message) is not None
