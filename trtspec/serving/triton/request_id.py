"""The client's own name for a request: a header of HTTP or gRPC, or what Triton calls the request's id.

Triton hands headers on as parameters where its options say so (`HEADER_PATTERN`), under the name that the
client wrote; 2.51 does not for its `generate`, for which the front of `trtspec deploy` makes an id of it.
The `id` of a `generate` body arrives as the request's id and as a parameter.
"""

from __future__ import annotations

from typing import Any

HEADER = "x-request-id"
HEADER_PATTERN = f"(?i)^{HEADER}$"
"""What `--http-header-forward-pattern` and `--grpc-header-forward-pattern` are set to."""

ID = "id"
"""The field of a `generate` body."""

NOT_UNICODE = "the request's id, or the name or text of one of its parameters, is not valid UTF-8"
"""The message for a client whose request Triton cannot pass to Python.

It has no status before it: the model would know by the request's name that it came through the front, but the
name cannot be read either.
"""

LONGEST = 128
"""The most characters of a name; more are cut off."""


def take_request_id(parameters: dict[str, Any]) -> str:
    """Removes the name from the parameters of a request, and returns it; empty if none is given."""
    found = ""
    for name in [name for name in parameters if name.lower() in (HEADER, ID)]:
        found = str(parameters.pop(name))
    return found[:LONGEST]
