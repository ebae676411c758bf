"""Bodies of requests, as far as they are judged without a server."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import threading
import zlib
from collections.abc import AsyncGenerator, Callable

import pytest

from trtspec.gateway.client_bounds import BodyError
from trtspec.gateway.triton import front
from trtspec.gateway.triton.front import inflated, is_deep, with_field

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
def test_a_body_that_is_no_json_object_is_passed_on_to_triton_unchanged(body: bytes) -> None:
    assert with_field(body, "name", "value") == body


def deflated(body: bytes) -> bytes:
    """As `deflate` is meant, without the head that zlib writes."""
    compress = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compress.compress(body) + compress.flush()


CODED: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}
TEXTS = [b"", b"{}", bytes(3 << 20), random.Random(1).randbytes(70_000) * 40]


async def read(coded: bytes, coding: str, size: int) -> list[bytes]:
    async def chunks() -> AsyncGenerator[bytes, None]:
        for begin in range(0, len(coded), size):
            yield coded[begin : begin + size]

    return [piece async for piece in inflated(chunks(), coding)]


@pytest.mark.parametrize("text", TEXTS, ids=map(len, TEXTS))
@pytest.mark.parametrize("size", [1000, 1 << 30])
@pytest.mark.parametrize(
    ("coding", "change"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", deflated)]
)
def test_a_coded_body_is_read_in_pieces_of_bounded_size(
    text: bytes, size: int, coding: str, change: object
) -> None:
    assert callable(change)
    pieces = asyncio.run(read(change(text), coding, size))
    assert b"".join(pieces) == text
    assert all(len(piece) <= 1 << 20 for piece in pieces)


@pytest.mark.parametrize("coding", CODED)
@pytest.mark.parametrize("body", [b'{"a": 1}' * 100, bytes(1 << 20)])
def test_a_body_that_is_not_whole_in_its_coding_is_told_so(coding: str, body: bytes) -> None:
    coded = CODED[coding](body)
    for wrong in (coded[:-1], coded[:20], coded + b"x", coded[:15] + bytes(9) + coded[24:], body):
        with pytest.raises(BodyError, match="does not match its Content-Encoding") as found:
            asyncio.run(read(wrong, coding, 1000))
        assert found.value.status == 400


def test_a_coding_that_nobody_here_knows_is_refused_before_the_body_is_read() -> None:
    async def chunks() -> AsyncGenerator[bytes, None]:
        raise AssertionError
        yield b""

    async def run() -> None:
        await anext(inflated(chunks(), "br"))

    with pytest.raises(BodyError, match="gzip, deflate or none") as found:
        asyncio.run(run())
    assert found.value.status == 415


def test_no_body_is_inflated_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    class Watched:
        """zlib, which says on which thread it is asked."""

        MAX_WBITS, DEFLATED, error = zlib.MAX_WBITS, zlib.DEFLATED, zlib.error

        def decompressobj(self, window: int) -> Watched:
            self._inner = zlib.decompressobj(window)
            return self

        def decompress(self, data: bytes, most: int) -> bytes:
            threads.append(threading.get_ident())
            return self._inner.decompress(data, most)

        def __getattr__(self, name: str) -> object:
            return getattr(self._inner, name)

    threads = list[int]()
    monkeypatch.setattr(front, "zlib", Watched())
    assert sum(map(len, asyncio.run(read(gzip.compress(bytes(5 << 20)), "gzip", 1000)))) == 5 << 20
    assert len(threads) >= 5
    assert threading.get_ident() not in threads
