"""The client's own id of a request, from a header of HTTP or gRPC, or from Triton's request id.

With the options of `HEADER_PATTERN` Triton passes headers on as parameters, in the client's spelling. Triton
2.51 does not do so for `generate`, so the front of `trtspec deploy` adds the header to the body as its id.
The `id` of a `generate` body arrives as the request's id and as a parameter.
"""

from __future__ import annotations

from typing import Any

HEADER = "x-request-id"
HEADER_PATTERN = f"(?i)^{HEADER}$"
"""The value of `--http-header-forward-pattern` and `--grpc-header-forward-pattern`."""

ID = "id"
"""The field of a `generate` body."""

NOT_UNICODE = "the request's id, or the name or text of one of its parameters, is not valid UTF-8"
"""The message for a client whose request Triton cannot pass to Python.

It does not begin with a status as errors to the front do: the name that shows that the request came through
the front cannot be read either.
"""

LONGEST = 128
"""The largest number of characters of an id; the rest is cut off."""


def take_request_id(parameters: dict[str, Any]) -> str:
    """Removes the id from the parameters of a request, and returns it; empty if there is none."""
    found = ""
    for name in [name for name in parameters if name.lower() in (HEADER, ID)]:
        found = str(parameters.pop(name))
    return found[:LONGEST]
