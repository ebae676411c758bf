"""Defines the parts of an answer's text: content, reasoning and tool calls."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isinf
from typing import Any, NoReturn, Protocol

# As long as Mistral's templates demand.
_ID_LENGTH = 9
_LONGEST_DIGITS = 400


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """One call: the function's name, and its arguments in JSON."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:_ID_LENGTH])


@dataclass(slots=True)
class ParsedText:
    """The content, the reasoning and the calls that were read from some text of an answer."""

    content: str = ""
    calls: list[ParsedCall] = field(default_factory=list)
    more: str = ""
    """More of the arguments of the last call that was found before."""
    reasoning: str = ""

    def followed_by(self, later: ParsedText) -> ParsedText:
        return ParsedText(
            self.content + later.content,
            self.calls + later.calls,
            self.more + later.more,
            self.reasoning + later.reasoning,
        )

    @property
    def is_empty(self) -> bool:
        return not (self.content or self.calls or self.more or self.reasoning)


class OutputParser(Protocol):
    """Takes the text of an answer as it comes, in any pieces, and returns its parts."""

    def push(self, text: str) -> ParsedText:
        """Takes more of the answer; holds back text that may begin a mark."""
        ...

    def flush(self) -> ParsedText:
        """Returns the rest when the answer has ended."""
        ...


class InTurn:
    """Takes the reasoning out of an answer, and then the calls out of the rest."""

    def __init__(self, reasoning: Callable[[], OutputParser], calls: Callable[[], OutputParser]) -> None:
        self._reasoning, self._calls = reasoning(), calls()

    def push(self, text: str) -> ParsedText:
        return self._on(self._reasoning.push(text))

    def flush(self) -> ParsedText:
        return self._on(self._reasoning.flush()).followed_by(self._calls.flush())

    def _on(self, found: ParsedText) -> ParsedText:
        return ParsedText(reasoning=found.reasoning).followed_by(self._calls.push(found.content))


def split_at_mark(text: str, marks: Sequence[str]) -> tuple[str, str, str] | None:
    """Returns the text before the first mark in it, that mark, and the text behind; None without a mark."""
    places = [(place, mark) for mark in marks if (place := text.find(mark)) >= 0]
    if not places:
        return None
    place, mark = min(places)
    return text[:place], mark, text[place + len(mark) :]


def split_before_mark(text: str, marks: Sequence[str]) -> tuple[str, str]:
    """Returns a text without a mark up to the end that may begin one, and that end."""
    size = len(text) - max(_overlap(text, mark) for mark in marks)
    return text[:size], text[size:]


def _overlap(text: str, mark: str) -> int:
    """Says how many characters at the end of a text may begin the mark."""
    return next((size for size in range(len(mark) - 1, 0, -1) if text.endswith(mark[:size])), 0)


def is_json(text: str) -> bool:
    """Says whether a text is JSON, as the arguments of a call must be."""
    try:
        read_json(text)
    except (ValueError, RecursionError):
        return False
    return True


def read_json(text: str | bytes) -> Any:
    """Returns a value that can be written as JSON again: none is NaN or infinite.

    Raises ValueError, or RecursionError for text that is nested too deeply.
    """
    return json.loads(text, parse_constant=_refuse, parse_int=_whole, parse_float=_number)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _whole(digits: str) -> int:
    if len(digits) > _LONGEST_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits, which is too many")
    return int(digits)


def _number(digits: str) -> float:
    if isinf(number := float(digits)):
        raise ValueError(f"{digits[:20]} is too large")
    return number
