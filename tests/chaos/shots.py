"""The requests of a chaos run, drawn by a seed."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tests.chaos.cases import Case

MEGABYTE = 1 << 20


class Kind(str, Enum):
    """What becomes of a request if all is well: its text, nothing that counts, a refusal, or either."""

    WELL_FORMED = "well-formed"
    CANCELLED = "cancelled"
    MALFORMED = "malformed"
    LIMITED = "limited"
    LARGE = "large"


@dataclass(frozen=True)
class Shot:
    """One request; `wire` is "http" or "grpc".

    `raw` is an HTTP body of no sense, `values` are the inputs of all others. `leaves_s` is when its client
    hangs up, `limit_s` its own time limit, both after it was sent; `size` is that of a large body, in bytes.
    """

    number: int
    kind: Kind
    wire: str
    stream: bool
    values: dict[str, Any]
    case: Case | None = None
    raw: bytes | None = None
    leaves_s: float | None = None
    limit_s: float | None = None
    size: int = 0


def draw(count: int, cases: list[Case], seed: int) -> list[Shot]:
    """10 % are cancelled, half of them without streaming, 5 % malformed, 5 % have a time limit."""
    dice = random.Random(seed)
    return [_shot(number, cases, dice) for number in range(count)]


def _shot(number: int, cases: list[Case], dice: random.Random) -> Shot:
    # Long texts are rarer, since they would take nearly all of the time.
    weights = [1 / (1 + len(case.prompt) / 200 + case.max_tokens / 8) for case in cases]
    (case,) = dice.choices(cases, weights)
    wire, stream, fate = dice.choice(["http", "grpc"]), dice.random() < 0.5, dice.random()
    if number % 500 == 250:
        size = dice.randrange(32, 201) * MEGABYTE
        return Shot(number, Kind.LARGE, "http", stream, {}, size=size)
    values: dict[str, Any] = {"text_input": case.prompt, "max_tokens": case.max_tokens, "stream": stream}
    if case.stop:
        values["stop_words"] = list(case.stop)
    if (length := dice.choice([None, None, 0, 1, 3, 8])) is not None:
        values["num_draft_tokens"] = length
    if dice.random() < 0.25:
        values["return_log_probs"] = True
    if fate < 0.10:
        leaves_s = dice.uniform(0, dice.choice([0.5, 15]))
        if dice.random() < 0.5:
            # A prompt of its own, so that the caches of a server are soon as full as they get.
            values["text_input"] = _gibberish(dice)
            if stream:
                values["num_return_sequences"] = dice.choice([1, 2, 4])
            return Shot(number, Kind.CANCELLED, wire, stream, values, leaves_s=leaves_s)
        return Shot(number, Kind.CANCELLED, wire, stream, values, case, leaves_s=leaves_s)
    if fate < 0.15:
        if wire == "http" and dice.random() < 0.4:
            return Shot(number, Kind.MALFORMED, wire, stream, {}, raw=dice.choice(RAW))
        return Shot(number, Kind.MALFORMED, wire, stream, {**values, **dice.choice(WRONG)})
    if fate < 0.20:
        limit_s = dice.choice([0.001, 0.1, 1.0, 5.0])
        return Shot(number, Kind.LIMITED, wire, stream, values, case, limit_s=limit_s)
    return Shot(number, Kind.WELL_FORMED, wire, stream, values, case)


def _gibberish(dice: random.Random) -> str:
    return " ".join(str(dice.randrange(1000)) for _ in range(dice.randrange(10, 250)))


RAW = (
    b"",
    b"{",
    b"[]",
    b"null",
    b'"text_input"',
    b'{"text_input": 3}',
    b'{"text_input": "\\ud800"}',
    b'{"text_input": "ab\xff\xfe"}',
    b'{"text_input": {"a": 1}}',
    b'{"text_input": ["a", "b"]}',
    b'{"text_input": "a", "max_tokens": "4"}',
    b'{"text_input": "a", "max_tokens": 1e99}',
    b'{"text_input": "a", "timeout": "soon"}',
    b'{"text_input": "a", "temperature": NaN}',
    b'{"text_input": "a"',
    b"\x00\x01\x02",
    b"text_input=a",
    json.dumps({"text_input": "a", "stop_words": ["x" * 1024] * 64}).encode(),
    b'{"text_input": "a", "stop_words": ' + b"[" * 3000 + b"]" * 3000 + b"}",
)
"""Over HTTP alone."""

WRONG: tuple[dict[str, Any], ...] = (
    {"max_tokens": 0},
    {"max_tokens": -5},
    {"num_draft_tokens": 9},
    {"num_draft_tokens": -1},
    {"top_k": -1},
    {"top_p": 1.5},
    {"temperature": -1.0},
    {"end_id": 10**6},
    {"min_tokens": -3},
    {"beam_width": 4},
    {"return_context_logits": True},
    {"bad_words": ["x" * 2000]},
    {"text_input": ""},
    {"text_input": "x = 1\n" * 2000},
    {"text_input": "x" * 200_000},
    {"stop_words": ["x"] * 65},
    {"stop_words": ["x" * 1024] * 64},
)
"""In any request."""
