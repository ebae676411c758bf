"""Reads the rows of a file of prompts in any format: JSON objects with their places."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trtspec.base.errors import DatasetError
from trtspec.base.extras import require

Row = tuple[str, dict[str, Any]]
SUFFIXES = (".jsonl", ".json", ".parquet", ".txt")


def read_rows(path: Path) -> list[Row]:
    """Returns every row of a file with its place for errors; raises `DatasetError`.

    A row is a line of JSONL, an element of a JSON list, or a row of Parquet. A line of text that is not empty
    is an object with `prompt`. Parquet needs pyarrow, and without it `UnavailableError` is raised.
    """
    readers = {".jsonl": _jsonl, ".json": _json, ".parquet": _parquet, ".txt": _text}
    if path.suffix not in readers:
        raise DatasetError(path, f"its name ends with none of {', '.join(SUFFIXES)}")
    try:
        rows = list(readers[path.suffix](path))
    except UnicodeDecodeError as error:
        raise DatasetError(path, f"is not UTF-8: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise DatasetError(path, f"cannot be read: {error.strerror or error}") from None
    if not rows:
        raise DatasetError(path, "has no prompts")
    return rows


def _jsonl(path: Path) -> Iterator[Row]:
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), 1):
        if line.strip():
            yield _row(f"{path}:{number}", _parsed(f"{path}:{number}", line))


def _json(path: Path) -> Iterator[Row]:
    found = _parsed(str(path), path.read_text(encoding="utf-8-sig"))
    if not isinstance(found, list):
        raise DatasetError(path, "is not a list of JSON objects", "name a file of one object a line .jsonl")
    for number, value in enumerate(found):
        yield _row(f"{path}[{number}]", value)


def _parquet(path: Path) -> Iterator[Row]:
    require(path.name, "pyarrow")
    from pyarrow import ArrowInvalid
    from pyarrow.parquet import ParquetFile

    try:
        table = ParquetFile(path).read()
    except ArrowInvalid as error:
        raise DatasetError(path, f"is not Parquet: {error}") from None
    for number, value in enumerate(table.to_pylist()):
        yield f"{path}[{number}]", value


def _text(path: Path) -> Iterator[Row]:
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1):
        if line.strip():
            yield f"{path}:{number}", {"prompt": line}


def _parsed(place: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DatasetError(place, f"is not JSON: {error}") from None


def _row(place: str, value: Any) -> Row:
    if not isinstance(value, dict):
        raise DatasetError(place, "is not a JSON object")
    return place, value
