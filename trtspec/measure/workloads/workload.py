"""Defines a workload: prompts with a name, and the times of requests that do not wait for each other.

Its prompts are a file's, or random words of any length, or those of answers that a target has given before.
Such answers are kept as JSONL; drafts are measured and trained with them. A line is an object with `name`,
`category`, `model`, `sampling`, `finish_reason`, and of prompt and answer the tokens (`prompt_token_ids`,
`answer_token_ids`), the text (`prompt`, `text`) or both. If both are there, the tokens count. Unknown keys
are ignored, so that others may add their own.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trtspec.base.errors import DatasetError, MeasureError


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of a workload."""

    name: str
    """Identifies the prompt in its workload."""
    turns: tuple[str, ...]
    """The messages of the user. Each is sent after the answer to the one before."""
    category: str = ""
    """The kind of prompt."""
    max_tokens: int | None = None
    """The most tokens of the answer; None leaves that to the caller."""
    answer: str = ""
    """The right answer, as text that an answer contains; empty if none is known."""

    @property
    def text(self) -> str:
        """The first turn, which is the whole prompt of most workloads."""
        return self.turns[0]


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts, at least one, and their origin."""

    name: str
    source: str
    """A file, or how the prompts were made."""
    prompts: tuple[Prompt, ...]

    @property
    def categories(self) -> dict[str, int]:
        """The number of prompts of each category, the largest first."""
        return dict(Counter(prompt.category for prompt in self.prompts).most_common())

    @property
    def digest(self) -> str:
        """Identifies the workload: other prompts, or another order, give another digest."""
        said = [(prompt.turns, prompt.max_tokens) for prompt in self.prompts]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]


def arrivals(rate: float, count: int, burstiness: float, seed: int) -> list[float]:
    """Returns `count` ascending times in seconds, from 0.0 on average 1 / `rate` apart.

    `burstiness` is the coefficient of variation of the gaps, squared: 1 is a Poisson process, 0 a clock,
    above 1 comes in bursts. Gaps have a gamma distribution, as in vLLM's `bench serve`, whose burstiness is
    the inverse of this number.
    """
    dice = random.Random(seed)  # noqa: S311
    now, times = 0.0, []
    for _ in range(count):
        times.append(now)
        gap = dice.gammavariate(1 / burstiness, burstiness / rate) if burstiness else 1 / rate
        now += gap if math.isfinite(gap) else 0.0
    return times


NAME = "synthetic"
_REPAIR = f"as in {NAME}:input=512,output=128,spread=0.2,prompts=64"
# Each word with its leading space is one token of the usual vocabularies.
_WORDS = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an "
    "they which one you were all her she there would their we him been has when who will no more if out "
    "so up said what its about than into them can only other time new some could these two may first then "
    "do any like my now over such our man me even most made after also did many off before must well back "
    "through years much where your way down should because long each just state those people too how "
    "little good world make very year still see own work men day get here old life both between being "
    "under three never know same last another while us might great against house place end home used "
    "again came around water right small hand"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of synthetic prompts."""

    input: int = 512
    """The mean tokens of a prompt, approximately."""
    output: int = 128
    """The mean tokens of an answer."""
    spread: float = 0.0
    """The standard deviation of both lengths divided by their means."""
    prompts: int = 64
    """The number of prompts."""


def read_shape(text: str) -> Shape:
    """Reads text such as `synthetic:input=512,output=128`; raises `MeasureError`."""
    values: dict[str, float] = {}
    for part in filter(None, text.removeprefix(NAME).removeprefix(":").split(",")):
        key, _, value = part.partition("=")
        if key not in Shape.__slots__:
            raise MeasureError(text, f"has no {key}; there are {', '.join(Shape.__slots__)}", _REPAIR)
        try:
            values[key] = float(value) if key == "spread" else int(value)
        except ValueError:
            raise MeasureError(text, f"{key} must be a number, not {value!r}", _REPAIR) from None
        least, most = (0, 5) if key == "spread" else (1, 10**7)
        if not least <= values[key] <= most:
            raise MeasureError(text, f"{key} must be {least} to {most:,}, not {value}", _REPAIR)
    return Shape(**values)  # type: ignore[arg-type]


def synthetic(shape: Shape, seed: int) -> Workload:
    """Returns prompts of random words; one seed gives the same prompts everywhere."""
    dice, words = random.Random(seed), _WORDS.split()  # noqa: S311

    def length(mean: int) -> int:
        return max(1, round(dice.gauss(mean, mean * shape.spread)))

    made = tuple(
        Prompt(
            str(number), (" ".join(dice.choices(words, k=length(shape.input))),), NAME, length(shape.output)
        )
        for number in range(1, shape.prompts + 1)
    )
    lengths = f"input={shape.input},output={shape.output},spread={shape.spread:g}"
    return Workload(NAME, f"{NAME}:{lengths},prompts={shape.prompts}", made)


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
