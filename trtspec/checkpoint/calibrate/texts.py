"""Reads the texts of one file: JSONL or plain text (a text per line), also compressed with gzip, or
Parquet."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from trtspec.base.errors import DatasetError
from trtspec.checkpoint.calibrate.dataset import LINES, PARQUET, is_text_file

Text: TypeAlias = str | list[dict[str, str]]
_ONE_A_LINE = 'write one JSON object a line: {"text": "..."}'


def read_texts(file: Path, field: str) -> Iterator[Text]:
    """Yields every text that is not empty: a string, or the messages of a conversation (`role`, `content`).

    `field` is the key, or the column, that holds the text. Raises DatasetError with the file and the line.
    """
    if not file.is_file():
        raise DatasetError(file, "no such file", "a path is relative to the recipe's folder")
    if not is_text_file(file.name):
        kinds = ", ".join((*LINES, *(f"{kind}.gz" for kind in LINES), PARQUET))
        raise DatasetError(file, f"is none of {kinds}", "give the file the suffix of its format")
    if file.suffix == PARQUET:
        rows = _parquet(file, field)
    elif file.name.removesuffix(".gz").endswith(".txt"):
        rows = _lines(file)
    else:
        rows = ((place, _field(place, line, field)) for place, line in _lines(file))
    for place, value in rows:
        text = _text(place, field, value)
        if text:
            _check_letters(place, text)
            yield text


def choose(texts: Iterable[Text], count: int, seed: int) -> list[Text]:
    """At most `count` texts, each equally likely, in random order; takes one pass (Vitter's algorithm R)."""
    chance, chosen = random.Random(seed), list[Text]()  # noqa: S311
    for number, text in enumerate(texts):
        if number < count:
            chosen.append(text)
        elif (place := chance.randrange(number + 1)) < count:
            chosen[place] = text
    chance.shuffle(chosen)
    return chosen


def _lines(file: Path) -> Iterator[tuple[str, str]]:
    """Yields the place (`file:line`) and the text of each line that is not blank; raises DatasetError."""
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
        number = 0
        try:
            for number, line in enumerate(stream, start=1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                if text:
                    yield f"{file}:{number}", text
        except UnicodeDecodeError as error:
            raise DatasetError(
                f"{file}:{number}", f"is not UTF-8: {error.reason}", "save it as UTF-8"
            ) from None
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise DatasetError(f"{file}:{number}", f"the gzip data is broken: {error}") from None


def _field(place: str, line: str, field: str) -> Any:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DatasetError(place, f"is not JSON: {error}", _ONE_A_LINE) from None
    if not isinstance(values, dict):
        raise DatasetError(place, "is not a JSON object", _ONE_A_LINE)
    if field not in values:
        raise DatasetError(place, *_without(field, values))
    return values[field]


def _parquet(file: Path, field: str) -> Iterator[tuple[str, Any]]:
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(file)
        columns = table.schema_arrow.names
        if field not in columns:
            raise DatasetError(file, *_without(field, columns))
        rows = (row for batch in table.iter_batches(columns=[field]) for row in batch.column(0).to_pylist())
        for number, value in enumerate(rows, start=1):
            yield f"{file}, row {number}", value
    except (pyarrow.ArrowException, OSError) as error:
        raise DatasetError(file, f"cannot be read as Parquet: {error}") from None


def _without(field: str, fields: Iterable[str]) -> tuple[str, str]:
    return f"has no {field!r}; it has {', '.join(fields)}", "name the field with the text in text_field"


def _text(place: str, field: str, value: Any) -> Text:
    if isinstance(value, str):
        return value.strip() and value
    if isinstance(value, list) and all(_is_message(message) for message in value):
        return [{"role": message["role"], "content": message["content"]} for message in value]
    problem = f"{field!r} is neither a text nor a list of messages with role and content"
    raise DatasetError(place, problem, "name the field with the text in text_field")


def _check_letters(place: str, text: Text) -> None:
    """Raises DatasetError for half of a letter, which JSON can hold and no tokenizer takes."""
    try:
        for part in [text] if isinstance(text, str) else [message["content"] for message in text]:
            part.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):x}"
        raise DatasetError(place, f"contains {half}, half of a UTF-16 pair", "remove the text") from None


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("role", "content"))
