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
"""What a client hears whose request Triton cannot hand on to Python.

The message has no status before it: the name of such a request, from which the model would know that it came
by the front, cannot be read either.
"""

LONGEST = 128
"""The most characters of a name; more are cut off."""


def take_request_id(parameters: dict[str, Any]) -> str:
    """Removes the name from the parameters of a request, and returns it; empty if none is given."""
    found = ""
    for name in [name for name in parameters if name.lower() in (HEADER, ID)]:
        found = str(parameters.pop(name))
    return found[:LONGEST]
