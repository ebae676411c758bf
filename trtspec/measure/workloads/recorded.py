"""Reads a target's recorded answers from JSONL; drafts are measured and trained with them.

A line is an object with `name`, `category`, `model`, `sampling`, `finish_reason`, and of prompt and answer
the tokens (`prompt_token_ids`, `answer_token_ids`), the text (`prompt`, `text`) or both. If both are there,
the tokens count. Unknown keys are ignored, so that others may add their own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trtspec.base.errors import DatasetError

FinishReason = Literal["stop", "length"]
_REASONS: tuple[FinishReason, ...] = ("stop", "length")


@dataclass(frozen=True, slots=True)
class Recorded:
    """A prompt and the target's answer to it, in token ids, text, or both."""

    name: str
    category: str = ""
    prompt: str | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    text: str | None = None
    answer_token_ids: tuple[int, ...] | None = None
    finish_reason: FinishReason = "length"
    """`stop`: an end token followed the answer, which does not contain it. `length`: the answer was cut."""
    model: str = ""
    """The model that gave the answer."""
    sampling: Mapping[str, float] = field(default_factory=dict)
    """The sampling options of the request, by TensorRT-LLM's names (`temperature`, `top_p`, `seed` and so
    on).

    Without any, the answer is greedy.
    """


def read_recorded(path: Path) -> list[Recorded]:
    """Reads a file of recorded answers; ignores a last line that was cut off during writing.

    Raises `DatasetError` with the number of a line that is wrong.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise DatasetError(path, "no such file", "name the file of recorded answers") from None
    except OSError as error:
        raise DatasetError(path, f"cannot be read: {error.strerror}") from None
    lines = data[: data.rfind(b"\n") + 1].split(b"\n")
    return [_read(f"{path}:{number}", line) for number, line in enumerate(lines, 1) if line.strip()]


def append_recorded(path: Path, answers: Iterable[Recorded]) -> None:
    """Appends answers to a file, which it creates if necessary, and syncs them to the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        if size := file.tell():
            file.seek(size - 1)
            if file.read(1) != b"\n":  # A line without its end was cut off by a crash.
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        file.writelines(_line(answer) for answer in answers)
        file.flush()
        os.fsync(file.fileno())


def _line(answer: Recorded) -> bytes:
    values = {name: getattr(answer, name) for name in Recorded.__slots__} | {
        "sampling": dict(answer.sampling)
    }
    known = {name: value for name, value in values.items() if value is not None}
    return json.dumps(known, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def _read(place: str, line: bytes) -> Recorded:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DatasetError(place, f"is not JSON: {error}", "write one JSON object a line") from None
    if not isinstance(values, dict):
        raise DatasetError(place, "is not a JSON object", "write one JSON object a line")
    reason = values.get("finish_reason", "length")
    if reason not in _REASONS:
        raise DatasetError(place, f"finish_reason is {reason!r}, which is none of {', '.join(_REASONS)}")
    answer = Recorded(
        name=_text(place, values, "name") or place.rpartition(":")[2],
        category=_text(place, values, "category") or "",
        prompt=_text(place, values, "prompt"),
        prompt_token_ids=_ids(place, values, "prompt_token_ids"),
        text=_text(place, values, "text"),
        answer_token_ids=_ids(place, values, "answer_token_ids"),
        finish_reason=reason,
        model=_text(place, values, "model") or "",
        sampling=_sampling(place, values.get("sampling") or {}),
    )
    if answer.prompt is None and not answer.prompt_token_ids:
        raise DatasetError(place, "has neither prompt nor prompt_token_ids")
    if answer.text is None and answer.answer_token_ids is None:
        raise DatasetError(place, "has neither text nor answer_token_ids")
    return answer


def _text(place: str, values: Mapping[str, Any], key: str) -> str | None:
    value = values.get(key)
    if value is not None and not isinstance(value, str):
        raise DatasetError(place, f"{key} must be text, not {value!r:.60}")
    return value


def _ids(place: str, values: Mapping[str, Any], key: str) -> tuple[int, ...] | None:
    value = values.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(token) is int and token >= 0 for token in value):
        raise DatasetError(place, f"{key} must be a list of token ids, not {value!r:.60}")
    return tuple(value)


def _sampling(place: str, value: Any) -> dict[str, float]:
    if not isinstance(value, dict) or not all(type(number) in (int, float) for number in value.values()):
        raise DatasetError(place, f"sampling must be options with numbers, not {value!r:.60}")
    return value
