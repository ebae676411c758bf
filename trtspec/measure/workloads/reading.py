"""Reads a workload: a file of prompts in any common format, or `synthetic:…` by its name.

The keys of a row identify its format:

- `turns`: Spec-Bench (github.com/hemingkx/Spec-Bench, `data/spec_bench/question.jsonl`), MT-bench
  (github.com/lm-sys/FastChat, `question.jsonl`) and SPEED-Bench (huggingface.co/datasets/nvidia/SPEED-Bench,
  Parquet), all with `question_id` and `category`.
- `conversations`: ShareGPT (`ShareGPT_V3_unfiltered_cleaned_split.json`), with `from` and `value`.
- `messages`: OpenAI's form of a chat, with `role` and `content`.
- `prompt`, `text_input` or `text`: a plain prompt.

Any row may have the right `answer` too, a text that a right answer contains.
"""

from __future__ import annotations

import csv
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trtspec.base.errors import DatasetError
from trtspec.base.extras import require
from trtspec.measure.workloads.workload import NAME, Prompt, Workload, read_shape, synthetic

Count = Callable[[str], int]
"""Returns the number of tokens of a text."""

_KEYS = (
    ("input_length", "output_length"),  # Mooncake's traces (https://github.com/kvcache-ai/Mooncake)
    ("ContextTokens", "GeneratedTokens"),  # Azure's (https://github.com/Azure/AzurePublicDataset)
    ("input_tokens", "output_tokens"),
)
_REPAIR_LENGTHS = "give " + ", or ".join(" and ".join(keys) for keys in _KEYS) + ", or prompts"


def read_lengths(path: Path, count: Count, answer_tokens: int) -> list[tuple[int, int]]:
    """Returns the tokens of each prompt and of its answer; raises `DatasetError` with the row.

    A row has both as numbers, or is a recorded answer (`prompt`, `text`, or their `_token_ids`), or a prompt
    as `trtspec bench` reads it. An answer of unknown length has `answer_tokens` tokens.
    """
    rows = _csv(path) if path.suffix == ".csv" else read_rows(path)
    found = [_lengths(place, row, count, answer_tokens) for place, row in rows]
    if not found:
        raise DatasetError(path, "has no requests", _REPAIR_LENGTHS)
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
        raise DatasetError(
            place, f"has no lengths: its columns are {', '.join(row) or 'none'}", _REPAIR_LENGTHS
        )
    answer = _of(place, row, "answer_token_ids", "text", count)
    prompt = _of(place, row, "prompt_token_ids", "prompt", count) if answer is not None else None
    if prompt is not None and answer is not None:
        return max(prompt, 1), max(answer, 1)
    read = prompts([(place, dict(row))])
    if not read:
        raise DatasetError(place, "has no prompt", _REPAIR_LENGTHS)
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


_USERS = ("human", "user")
_PLAIN = ("prompt", "text_input", "text")
_NAMES = ("question_id", "id", "name")
_REPAIR = "give each row one of turns, conversations, messages, prompt"
# SPEED-Bench has this in place of texts that may not be redistributed; a script of NVIDIA's fetches them.
_NOT_FETCHED = "FULL BENCHMARK DATA SHOULD BE FETCHED"
Row = tuple[str, dict[str, Any]]
SUFFIXES = (".jsonl", ".json", ".parquet", ".txt")


def read_workload(name: str, seed: int = 0, most_turns: int | None = None) -> Workload:
    """Returns the workload in an order in which every part of it has all categories in their shares.

    Raises `DatasetError` for a file that cannot be read or has no prompts, and `MeasureError` for a wrong
    `synthetic:…`.
    """
    if name.partition(":")[0] == NAME:
        return synthetic(read_shape(name), seed)
    path = Path(name)
    found = prompts(read_rows(path), most_turns)
    if not found:
        raise DatasetError(path, "has no prompts: no user speaks in its conversations")
    return Workload(path.stem, path.name, mixed(found, seed))


def mixed(found: tuple[Prompt, ...], seed: int) -> tuple[Prompt, ...]:
    """Returns the prompts with those of each category spread evenly over the whole."""
    dice = random.Random(seed)  # noqa: S311
    by_category: dict[str, list[Prompt]] = defaultdict(list)
    for prompt in found:
        by_category[prompt.category].append(prompt)
    placed: list[tuple[float, int, Prompt]] = []
    for number, same in enumerate(by_category.values()):
        dice.shuffle(same)
        begin = dice.random()
        placed += [((begin + place) / len(same), number, prompt) for place, prompt in enumerate(same)]
    return tuple(prompt for _, _, prompt in sorted(placed, key=lambda each: each[:2]))


def prompts(rows: Iterable[Row], most_turns: int | None = None) -> tuple[Prompt, ...]:
    """Returns the prompts of rows, each with at most this many turns; raises `DatasetError` with the row.

    A conversation without a user's turn is left out.
    """
    found = (_prompt(number, place, row, most_turns) for number, (place, row) in enumerate(rows, 1))
    return tuple(prompt for prompt in found if prompt.turns)


def _prompt(number: int, place: str, row: dict[str, Any], most_turns: int | None) -> Prompt:
    turns = _turns(place, row)
    for turn in turns:
        if not isinstance(turn, str) or not turn:
            raise DatasetError(place, f"a turn must be text, not {turn!r:.60}")
        if _NOT_FETCHED in turn:
            repair = "complete the file with the script that the data set's page names"
            raise DatasetError(place, "its text was left out of the published file", repair)
        check_whole(place, "a turn", turn, "no tokenizer reads")
    max_tokens = row.get("max_tokens")
    if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
        raise DatasetError(place, f"max_tokens must be a number above 0, not {max_tokens!r:.60}")
    name = next((str(row[key]) for key in _NAMES if row.get(key) not in (None, "")), str(number))
    category = str(row.get("category") or "")
    for what, text in (("its name", name), ("its category", category)):
        check_whole(place, what, text, "no file has")
    answer = row.get("answer")
    known = answer if isinstance(answer, str) else ""
    return Prompt(name, tuple(turns[:most_turns]), category, max_tokens, known)


def check_whole(place: str, what: str, text: str, then: str) -> None:
    """Refuses a text that was cut between the two UTF-16 halves of an emoji."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        problem = f"{what} has half a character, {text[error.start]!r}, which {then}"
        raise DatasetError(place, problem) from None


def _turns(place: str, row: dict[str, Any]) -> list[Any]:
    if "turns" in row:
        turns = row["turns"]
        if not isinstance(turns, list) or not turns:
            raise DatasetError(place, f"turns must be a list of texts, not {turns!r:.60}")
        return turns
    if "conversations" in row:
        return _said(place, row["conversations"], "from", "value")
    if "messages" in row:
        return _said(place, row["messages"], "role", "content")
    if key := next((key for key in _PLAIN if key in row), None):
        return [row[key]]
    raise DatasetError(place, f"has no prompt: its keys are {', '.join(row) or 'none'}", _REPAIR)


def _said(place: str, messages: Any, who: str, what: str) -> list[Any]:
    """Returns the user's turns, in order."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise DatasetError(place, "a conversation must be a list of objects", _REPAIR)
    return [message.get(what) for message in messages if message.get(who) in _USERS]


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
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), 1):
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
