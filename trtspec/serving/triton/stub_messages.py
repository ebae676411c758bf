"""Recognises Triton's errors for a model whose process has ended, which it sends until it ends itself.

Triton gives these errors the code INTERNAL, and over HTTP the status 400, like any error of a model. They
come from the Python backend when it passes a request on (`ReceiveMessageFromStub` in `src/stub_launcher.cc`,
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
    """Says whether an error means that the process of a model has ended."""
    return _ENDED.search(message) is not None
