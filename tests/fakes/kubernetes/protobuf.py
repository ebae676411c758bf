"""Secrets as Go's client writes them: in protobuf, of which no more is read than Helm's releases need.

The fields are those of k8s.io/api/core/v1/generated.proto and apimachinery's meta/v1 and runtime.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator

from tests.fakes.kubernetes.objects import Json

KIND = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\0"
_NAME, _LABELS = 1, 11  # of ObjectMeta


def secret(body: bytes) -> Json:
    """The Secret in an envelope of Kubernetes."""
    assert body.startswith(_MAGIC)
    raw = dict(_fields(body[len(_MAGIC) :]))[2]
    metadata: Json = {"labels": {}}
    data, kind = {}, ""
    for number, value in _fields(raw):
        if number == 1:
            for part, content in _fields(value):
                if part == _NAME:
                    metadata["name"] = content.decode()
                elif part == _LABELS:
                    key, label = _entry(content)
                    metadata["labels"][key] = label.decode()
        elif number == 2:
            key, content = _entry(value)
            data[key] = base64.b64encode(content).decode()
        elif number == 3:
            kind = value.decode()
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind, "data": data}


def _entry(entry: bytes) -> tuple[str, bytes]:
    parts = dict(_fields(entry))
    return parts[1].decode(), parts.get(2, b"")


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a message that have a length, by their numbers; numbers are left out."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        size, at = _varint(message, at)
        if tag & 7 == 2:
            yield tag >> 3, message[at : at + size]
            at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
