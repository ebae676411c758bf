"""Checks and changes of JSON bodies that need no parser."""

from __future__ import annotations

import json

import numpy as np

# Triton's JSON parser is recursive: a million nested brackets end the server.
_MAX_DEPTH = 1000
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1
_SLICE = 1 << 18


def is_deep(body: bytes) -> bool:
    """Says whether JSON may be nested so deeply that Triton crashes."""
    if body.count(b"[") + body.count(b"{") <= _MAX_DEPTH:
        return False
    plain = np.frombuffer(body.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
    quotes = depth = 0
    for begin in range(0, len(plain), _SLICE):
        piece = plain[begin : begin + _SLICE]
        before = quotes + np.cumsum(piece == ord('"'), dtype=np.int32)
        depths = depth + np.cumsum(_STEPS[piece] * (before % 2 == 0), dtype=np.int32)
        if depths.max() > _MAX_DEPTH:
            return True
        quotes, depth = int(before[-1]), int(depths[-1])
    return False


def with_field(body: bytes, name: str, value: str) -> bytes:
    """Returns a JSON object with one more field at its end. A body that is no object stays as it is."""
    inside = body.rstrip()
    if not inside.endswith(b"}"):
        return body
    inside = inside[:-1].rstrip()
    comma = b"" if inside.endswith(b"{") else b","
    return inside + comma + json.dumps({name: value}).encode()[1:]
