"""Reads the tool calls in a model's answer, in the form that its chat template taught it.

Most families write each call between marks (`call_forms.py`). Llama's and Mistral's write nothing but the
calls, as one JSON object or a list of them, after a special token that has no text.
"""

from __future__ import annotations

from collections.abc import Container

from trtspec.gateway.openai.call_forms import CallForm, Tools, calls_in_json
from trtspec.gateway.openai.parsed import ParsedText, split_at_mark, split_before_mark


class TaggedCalls:
    """Takes an answer as it comes, and finds calls between a form's marks; text around them is content."""

    def __init__(self, form: CallForm, tools: Tools) -> None:
        self._form, self._tools = form, tools
        self._held, self._is_inside = "", False
        self._blanks, self._is_behind_call = "", False

    def push(self, text: str) -> ParsedText:
        found, self._held = ParsedText(), self._held + text
        while self._step(found):
            pass
        return found

    def flush(self) -> ParsedText:
        """Returns the rest when the answer has ended; a complete call counts, closed or not."""
        held, self._held = self._held, ""
        found = ParsedText(calls=self._form.read(held, self._tools) if self._is_inside else [])
        if not found.calls:
            self._show(found, self._form.begin + held if self._is_inside else held)
        return found

    def _step(self, found: ParsedText) -> bool:
        """Goes on to behind the next mark; returns False where there is none."""
        form = self._form
        marks = (form.end,) if self._is_inside else (form.begin, *form.frame)
        marked = split_at_mark(self._held, marks)
        if marked is None:
            if not self._is_inside:
                sure, self._held = split_before_mark(self._held, marks)
                self._show(found, sure)
            return False
        before, mark, self._held = marked
        if not self._is_inside:
            self._show(found, before)
            self._is_inside = mark == form.begin
            self._is_behind_call = self._is_behind_call or not self._is_inside
            return True
        calls = form.read(before, self._tools)
        found.calls += calls
        if calls:
            self._blanks, self._is_behind_call = "", True
        else:
            self._show(found, f"{form.begin}{before}{form.end}")
        self._is_inside = False
        return True

    def _show(self, found: ParsedText, text: str) -> None:
        # Blanks behind a call are content where text follows; before another call or the end they are form.
        if self._is_behind_call:
            text, self._blanks = self._blanks + text, ""
            if not text.strip():
                self._blanks = text
                return
            self._is_behind_call = False
        found.content += text


class BareCalls:
    """Takes an answer that is content, or only calls in JSON; the first character decides.

    JSON that names none of the functions is content: a `response_format` may have names in it too.
    """

    def __init__(self, names: Container[str]) -> None:
        self._held, self._is_content, self._names = "", False, names

    def push(self, text: str) -> ParsedText:
        if self._is_content:
            return ParsedText(text)
        self._held += text
        begin = self._held.lstrip()
        if begin and begin[0] not in "[{":
            self._is_content = True
            return ParsedText(self._taken())
        return ParsedText()

    def flush(self) -> ParsedText:
        held = self._taken()
        calls = calls_in_json(held)
        if not all(call.name in self._names for call in calls):
            calls = []
        return ParsedText("" if calls else held, calls)

    def _taken(self) -> str:
        held, self._held = self._held, ""
        return held
