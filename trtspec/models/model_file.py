"""Opens files of models: regular files, or links to them, as the Hub's cache has them.

A pipe in the place of a file would be waited for, and a device read, for ever.
"""

from __future__ import annotations

import os
from pathlib import Path
from stat import S_ISDIR, S_ISFIFO, S_ISSOCK
from typing import BinaryIO

from trtspec.base.errors import ModelError
from trtspec.base.units import three_digits

MAX_TEXT = 256 << 20
"""The most bytes of a JSON file or a chat template; the largest tokenizers have a tenth of it."""
_KINDS = {S_ISDIR: "folder", S_ISFIFO: "named pipe", S_ISSOCK: "socket"}


def has_file(file: Path) -> bool:
    """Says whether a file is there; raises ModelError for something else in its place."""
    if file.is_file() or not file.exists():
        return file.is_file()
    mode = file.stat().st_mode
    kind = next((kind for is_kind, kind in _KINDS.items() if is_kind(mode)), "device")
    raise ModelError(file, f"is a {kind}, not a file", "put the file itself there, or a link to it")


def open_file(file: Path) -> BinaryIO:
    """Opens a file to read its bytes; raises ModelError for anything but a regular file, and OSError."""
    has_file(file)
    # It is not waited for either if a pipe takes its place now.
    return open(file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK))


def read_file(file: Path) -> bytes:
    """Returns the bytes of a file of text; raises ModelError for more than `MAX_TEXT`, and as `open_file`."""
    with open_file(file) as stream:
        content = stream.read(MAX_TEXT + 1)
    if len(content) > MAX_TEXT:
        problem = f"has more than {three_digits(MAX_TEXT)}, which no such file of a model has"
        raise ModelError(file, problem, "download the file again, or copy it again from an intact one")
    return content
