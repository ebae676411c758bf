"""The bodies at the front: requests that it checks without a parser, its errors, answers that it corrects."""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections.abc import AsyncGenerator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

import numpy as np
from aiohttp import web
from multidict import CIMultiDict

from trtspec.gateway.bodies import BodyError
from trtspec.gateway.client_bounds import RETRY_S
from trtspec.serving.triton.agreement import ENDED, NOT_UNICODE, tells_end

_IN_PARTS = b"generate expects model to produce exactly 1 response"
# Errors of the model begin with their status: see `trtspec.serving.triton.agreement`.
_STATUS = re.compile(rb'((?:data: )?\{)"error":"(\d{3}) ')
# Triton reports an internal error for a body that is not JSON, or has values of another type. Each such
# message of its parser has one of these words (`triton/common/triton_json.h`).
_NO_JSON = re.compile(rb"JSON|attempt to |Unable to parse")
# Triton's JSON parser is recursive: a million nested brackets end the server.
_MAX_DEPTH = 1000
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1
_SLICE = 1 << 18
# zlib's windows by Content-Encoding. Some clients leave out the head that `deflate` has (RFC 9110, 8.4.1.2).
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_PIECE = 1 << 20
# One thread: whoever sends such bodies takes no more than one processor from all else.
_INFLATING = ThreadPoolExecutor(1, "trtspec-inflate")
_NOT_CODED = "the body does not match its Content-Encoding"


async def inflated(chunks: AsyncGenerator[bytes, None], coding: str) -> AsyncGenerator[bytes, None]:
    """Yields a body without its Content-Encoding, in pieces of at most 1 MiB that a thread makes.

    Raises `BodyError` for another coding than gzip and deflate, and for a body that is not in its coding.
    """
    if coding not in _WINDOWS:
        raise BodyError(415, "the Content-Encoding of a body is gzip, deflate or none")
    loop, inflater = asyncio.get_running_loop(), None
    async with aclosing(chunks):
        try:
            async for rest in chunks:
                if inflater is None:
                    is_bare = coding == "deflate" and rest[0] & 0xF != zlib.DEFLATED
                    inflater = zlib.decompressobj(-zlib.MAX_WBITS if is_bare else _WINDOWS[coding])
                while rest:
                    yield await loop.run_in_executor(_INFLATING, inflater.decompress, rest, _PIECE)
                    rest = inflater.unconsumed_tail
            if inflater:
                # All input was taken, so that what is left is a few bytes.
                yield inflater.flush()
        except zlib.error:
            raise BodyError(400, _NOT_CODED) from None
    if inflater and (not inflater.eof or inflater.unused_data):
        raise BodyError(400, _NOT_CODED)


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


def error(status: int, message: str) -> web.Response:
    """Returns an error in Triton's form, with `Retry-After` for the status 503."""
    response = web.Response(status=status, body=error_json(message), content_type="application/json")
    if status == 503:
        response.headers["Retry-After"] = str(RETRY_S)
    return response


def error_json(message: str) -> bytes:
    return json.dumps({"error": message}).encode()


def without_status(piece: bytes) -> bytes:
    """Returns a piece of a stream without the status in an error: the stream's own was sent before."""
    return _STATUS.sub(rb'\1"error":"', piece) if b'"error":"' in piece else piece


def is_from_model(body: bytes) -> bool:
    """Says whether an error comes from the model, which counts its errors itself."""
    return _STATUS.match(body) is not None or NOT_UNICODE.encode() in body


def corrected(status: int, headers: Iterable[tuple[str, str]], body: bytes) -> web.Response:
    """Returns a complete response of Triton's with the HTTP status that fits its text."""
    if found := _STATUS.match(body):
        return error(int(found[2]), json.loads(body[len(found[1]) - 1 :])["error"].partition(" ")[2])
    if status == 200 and body.startswith(b'{"error"'):
        if _IN_PARTS in body:
            why = "stream is true, or num_return_sequences above 1"
            return error(400, f"{why}: the answer comes in parts, so use generate_stream")
        status = 500
    if status == 500 and _NO_JSON.search(body):
        status = 400
    elif status != 200 and tells_end(body.decode(errors="replace")):
        return error(503, ENDED)
    response = web.Response(status=status, body=body, headers=CIMultiDict(headers))
    if status == 503:
        response.headers["Retry-After"] = str(RETRY_S)
    return response
