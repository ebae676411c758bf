"""Reads prompts from the rows of common benchmarks; their keys identify the format.

- `turns`: Spec-Bench (github.com/hemingkx/Spec-Bench, `data/spec_bench/question.jsonl`), MT-bench
  (github.com/lm-sys/FastChat, `question.jsonl`) and SPEED-Bench (huggingface.co/datasets/nvidia/SPEED-Bench,
  Parquet), all with `question_id` and `category`.
- `conversations`: ShareGPT (`ShareGPT_V3_unfiltered_cleaned_split.json`), with `from` and `value`.
- `messages`: OpenAI's form of a chat, with `role` and `content`.
- `prompt`, `text_input` or `text`: a plain prompt.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trtspec.base.errors import DatasetError
from trtspec.measure.workloads.rows import Row
from trtspec.measure.workloads.workload import Prompt

_USERS = ("human", "user")
_PLAIN = ("prompt", "text_input", "text")
_NAMES = ("question_id", "id", "name")
_REPAIR = "give each row one of turns, conversations, messages, prompt"
# SPEED-Bench has this in place of texts that may not be redistributed; a script of NVIDIA's fetches them.
_NOT_FETCHED = "FULL BENCHMARK DATA SHOULD BE FETCHED"


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
        _check_whole(place, "a turn", turn, "no tokenizer reads")
    max_tokens = row.get("max_tokens")
    if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
        raise DatasetError(place, f"max_tokens must be a number above 0, not {max_tokens!r:.60}")
    name = next((str(row[key]) for key in _NAMES if row.get(key) not in (None, "")), str(number))
    category = str(row.get("category") or "")
    for what, text in (("its name", name), ("its category", category)):
        _check_whole(place, what, text, "no file has")
    return Prompt(name, tuple(turns[:most_turns]), category, max_tokens)


def _check_whole(place: str, what: str, text: str, then: str) -> None:
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
