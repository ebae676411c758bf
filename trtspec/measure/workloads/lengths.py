"""Finds the lengths of requests in tokens: from a trace, or by counting prompts and answers."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trtspec.base.errors import DatasetError
from trtspec.measure.workloads.reading import Row, check_whole, prompts, read_rows

Count = Callable[[str], int]
"""Returns the number of tokens of a text."""

_KEYS = (
    ("input_length", "output_length"),  # Mooncake's traces (https://github.com/kvcache-ai/Mooncake)
    ("ContextTokens", "GeneratedTokens"),  # Azure's (https://github.com/Azure/AzurePublicDataset)
    ("input_tokens", "output_tokens"),
)
_REPAIR = "give " + ", or ".join(" and ".join(keys) for keys in _KEYS) + ", or prompts"


def read_lengths(path: Path, count: Count, answer_tokens: int) -> list[tuple[int, int]]:
    """Returns the tokens of each prompt and of its answer; raises `DatasetError` with the row.

    A row has both as numbers, or is a recorded answer (`prompt`, `text`, or their `_token_ids`), or a prompt
    as `trtspec bench` reads it. An answer of unknown length has `answer_tokens` tokens.
    """
    rows = _csv(path) if path.suffix == ".csv" else read_rows(path)
    found = [_lengths(place, row, count, answer_tokens) for place, row in rows]
    if not found:
        raise DatasetError(path, "has no requests", _REPAIR)
    return found


def _csv(path: Path) -> list[Row]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            table = csv.DictReader(file, restkey="beyond the header")
            return [(f"{path}:{number}", dict(row)) for number, row in enumerate(table, 2)]
    except csv.Error as error:
        raise DatasetError(path, f"is not CSV: {error}") from None
    except UnicodeDecodeError as error:
        raise DatasetError(path, f"is not UTF-8: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise DatasetError(path, f"cannot be read: {error.strerror or error}") from None


def _lengths(place: str, row: Mapping[str, Any], count: Count, answer_tokens: int) -> tuple[int, int]:
    for given, asked in _KEYS:
        if given in row and asked in row:
            return _number(place, given, row[given]), _number(place, asked, row[asked])
    if place.rpartition(":")[0].endswith(".csv"):
        raise DatasetError(place, f"has no lengths: its columns are {', '.join(row) or 'none'}", _REPAIR)
    answer = _of(place, row, "answer_token_ids", "text", count)
    prompt = _of(place, row, "prompt_token_ids", "prompt", count) if answer is not None else None
    if prompt is not None and answer is not None:
        return max(prompt, 1), max(answer, 1)
    read = prompts([(place, dict(row))])
    if not read:
        raise DatasetError(place, "has no prompt", _REPAIR)
    return max(count(read[0].text), 1), read[0].max_tokens or answer_tokens


def _of(place: str, row: Mapping[str, Any], ids: str, text: str, count: Count) -> int | None:
    if isinstance(row.get(ids), list):
        return len(row[ids])
    if not isinstance(row.get(text), str):
        return None
    check_whole(place, text, row[text], "no tokenizer reads")
    return count(row[text])


def _number(place: str, key: str, value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise DatasetError(place, f"{key} must be a number of tokens, not {value!r:.60}") from None
    if not 0 <= number <= 10**7:
        raise DatasetError(place, f"{key} is {number}, which is impossible for a request")
    return max(number, 1)
