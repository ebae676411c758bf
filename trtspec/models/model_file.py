"""Opens files of models: regular files, or links to them, as the Hub's cache has them.

A pipe in the place of a file would be waited for, and a device read, for ever.
"""

from __future__ import annotations

import os
from pathlib import Path
from stat import S_ISBLK, S_ISCHR, S_ISDIR, S_ISFIFO, S_ISREG
from typing import BinaryIO

from trtspec.base.errors import ModelError
from trtspec.base.units import three_digits

MAX_TEXT = 256 << 20
"""The most bytes of a JSON file or a chat template; the largest tokenizers have a tenth of it."""
_KINDS = {S_ISDIR: "folder", S_ISFIFO: "named pipe", S_ISCHR: "device", S_ISBLK: "device"}


def has_file(file: Path) -> bool:
    """Says whether a file is there; raises ModelError for something else in its place."""
    if file.is_file():
        return True
    if file.exists():
        raise _irregular(file, file.stat().st_mode)
    return False


def open_file(file: Path) -> BinaryIO:
    """Opens a file to read its bytes; raises ModelError for anything but a regular file, and OSError."""
    return open(file, "rb", opener=_open)


def read_file(file: Path) -> bytes:
    """Returns the bytes of a file of text; raises ModelError for more than `MAX_TEXT`, and as `open_file`."""
    with open_file(file) as stream:
        content = stream.read(MAX_TEXT + 1)
    if len(content) > MAX_TEXT:
        problem = f"has more than {three_digits(MAX_TEXT)}, which no such file of a model has"
        raise ModelError(file, problem, "download the file again, or copy it again from an intact one")
    return content


def _open(path: str, flags: int) -> int:
    """Returns a descriptor; opening a device can already do something, so it is looked at first."""
    file = Path(path)
    if not S_ISREG(mode := os.stat(file).st_mode):
        raise _irregular(file, mode)
    # Another may have taken its place since.
    descriptor = os.open(file, flags | os.O_NONBLOCK)
    if not S_ISREG(mode := os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _irregular(file, mode)
    return descriptor


def _irregular(file: Path, mode: int) -> ModelError:
    kind = next((kind for is_kind, kind in _KINDS.items() if is_kind(mode)), "socket")
    return ModelError(file, f"is a {kind}, not a file", "put the file itself there, or a link to it")
