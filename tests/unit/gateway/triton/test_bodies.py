"""Bodies of requests, as far as they are judged without a server."""

from __future__ import annotations

import json

import pytest

from trtspec.gateway.triton.bodies import is_deep, with_field

OPEN = b"[" * 1001


@pytest.mark.parametrize(
    ("body", "deep"),
    [
        (b"[" * 1000 + b"]" * 1000, False),
        (OPEN, True),
        (b'{"a":' * 1001, True),
        (b"[]" * 100_000, False),
        (b'"' + OPEN + b'"', False),
        (b'"\\"' + OPEN, False),
        (b'"\\\\"' + OPEN, True),
        (b'"a"' * 300_000 + OPEN, True),
        (b"x" * ((1 << 18) - 500) + OPEN, True),
        (b'"' + b"x" * (1 << 18) + OPEN, False),
        (b"", False),
    ],
)
def test_depth_outside_of_strings(body: bytes, deep: bool) -> None:
    assert is_deep(body) == deep


@pytest.mark.parametrize("given", [{}, {"a": 1}, {"a": {"b": []}, "c": "}"}])
@pytest.mark.parametrize("space", [b"", b" \r\n"])
def test_a_field_is_added(given: dict[str, object], space: bytes) -> None:
    body = space + json.dumps(given).encode()[:-1] + space + b"}" + space
    assert json.loads(with_field(body, "name", "value")) == {**given, "name": "value"}


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'{"a": 1'])
def test_what_is_no_object_stays_for_triton_to_refuse(body: bytes) -> None:
    assert with_field(body, "name", "value") == body
