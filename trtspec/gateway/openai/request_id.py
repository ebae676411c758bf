"""Names requests: by the client's own name, or a new one.

The model's log has the name, the answer's `id` ends with it as in vLLM, and the answer's header
`X-Request-Id` has it, which OpenAI's clients show as `_request_id`.
"""

from __future__ import annotations

import uuid

from starlette.types import Scope

from trtspec.serving.triton.agreement import HEADER, LONGEST

_KEY = "trtspec.request_id"
_HEADER = HEADER.encode()


def name_request(scope: Scope) -> None:
    """Names the request of this scope."""
    given = next((value for name, value in scope["headers"] if name == _HEADER), b"")
    scope[_KEY] = given[:LONGEST].decode("latin-1") or uuid.uuid4().hex


def request_id(scope: Scope) -> str:
    """Returns the name that the request was given; empty where it has none."""
    name: str = scope.get(_KEY, "")
    return name


def id_headers(scope: Scope) -> list[tuple[bytes, bytes]]:
    """Returns the header that tells the client the name, if there is one."""
    name = request_id(scope)
    return [(_HEADER, name.encode("latin-1"))] if name else []
