"""Reads the reasoning before an answer, in the form that the model's chat template taught it.

A form has marks at both ends, each in one or more wordings. The names are those of vLLM's parsers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from trtspec.gateway.openai.parsed_text import ParsedText, split_at_mark, split_before_mark


@dataclass(frozen=True, slots=True)
class ReasoningForm:
    """The marks around the reasoning of a family of models."""

    begins: tuple[str, ...]
    ends: tuple[str, ...]
    is_open: bool = False
    """True if an answer begins with reasoning even where no mark says so."""

    def is_open_behind(self, prompt: str) -> bool:
        """Says whether an answer to this prompt begins with reasoning; templates may end in either mark."""
        end = prompt.rstrip()
        if end.endswith(self.ends):
            return False
        return self.is_open or end.endswith(self.begins)


FORMS = {
    "deepseek_r1": ReasoningForm(("<think>",), ("</think>",), is_open=True),
    "qwen3": ReasoningForm(("<think>",), ("</think>",)),
    "granite": ReasoningForm(
        ("Here is my thought process:", "Here's my thought process:"),
        ("Here is my response:", "Here's my response:"),
    ),
}
"""The forms by the names of vLLM's parsers."""


def form_of(template: str) -> ReasoningForm | None:
    """Returns the form that a chat template teaches; None where it teaches none.

    DeepSeek-R1's first template has the end's mark alone, by which it cuts the reasoning of earlier answers.
    """
    if any(mark in template for mark in FORMS["qwen3"].ends):
        return FORMS["qwen3"]
    return FORMS["granite"] if "thought process" in template else None


class TaggedReasoning:
    """Takes an answer as it comes; text between the marks is reasoning, and text after them is content.

    Reasoning is at the beginning of an answer or nowhere: marks that come later are part of the content.
    """

    def __init__(self, form: ReasoningForm, *, is_open: bool) -> None:
        self._form, self._is_open = form, is_open
        self._held, self._read = "", self._beginning

    def push(self, text: str) -> ParsedText:
        self._held += text
        return self._read()

    def flush(self) -> ParsedText:
        held, self._held = self._held, ""
        is_inside = self._read == self._inside or (self._is_open and self._read == self._beginning)
        return ParsedText(reasoning=held) if is_inside else ParsedText(held)

    def _beginning(self) -> ParsedText:
        begun = self._held.lstrip()
        mark = next((mark for mark in self._form.begins if begun.startswith(mark)), None)
        if mark is not None:
            self._held = begun[len(mark) :]
        elif any(mark.startswith(begun) for mark in self._form.begins):
            return ParsedText()
        self._read = self._inside if self._is_open or mark is not None else self._behind
        return self._read()

    def _inside(self) -> ParsedText:
        ended = split_at_mark(self._held, self._form.ends)
        if ended is None:
            reasoning, self._held = split_before_mark(self._held, self._form.ends)
            return ParsedText(reasoning=reasoning)
        reasoning, _, self._held = ended
        self._read = self._behind
        return ParsedText(reasoning=reasoning).followed_by(self._behind())

    def _behind(self) -> ParsedText:
        content, self._held = self._held, ""
        return ParsedText(content)


class ReasoningTokens:
    """Counts the tokens of the reasoning, where each of its marks is one token: `begin` and `end`.

    The marks themselves do not count. Blanks may stand before the first one, of which `bytes_of` tells.
    """

    def __init__(self, begin: int, end: int, bytes_of: Callable[[int], bytes], *, is_open: bool) -> None:
        self._begin, self._end, self._bytes_of = begin, end, bytes_of
        self._is_first, self._is_inside = True, is_open
        self.number = 0

    def push(self, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            if self._is_first and token_id == self._begin:
                self._is_first, self._is_inside, self.number = False, True, 0
                continue
            self._is_first = self._is_first and not self._bytes_of(token_id).strip()
            if token_id == self._end:
                self._is_first = self._is_inside = False
            self.number += self._is_inside
