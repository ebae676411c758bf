"""Reads the answers of gpt-oss, which are messages in OpenAI's harmony format.

A message is a header, `<|message|>` and a body up to the next mark. The header names the channel: `analysis`
is reasoning, `final` and `commentary` are content, and a recipient (`to=functions.NAME`) makes it a call. Its
marks are special tokens, so the text of the answer must have their names.
"""

from __future__ import annotations

import re

from trtspec.gateway.openai.parsed import ParsedCall, ParsedText, is_json, split_at_mark, split_before_mark

NAME = "openai_gptoss"
"""vLLM's name of the form."""
MARK = "<|channel|>"

_BODY = "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=functions\.([^\s<]+)")


class HarmonyReader:
    """Takes an answer as it comes; returns a call when its message has ended."""

    def __init__(self) -> None:
        self._held, self._is_inside = "", False
        self._channel, self._function = "", ""

    def push(self, text: str) -> ParsedText:
        self._held += text
        found = ParsedText()
        while True:
            if not self._is_inside:
                header, is_there, rest = self._held.partition(_BODY)
                if not is_there:
                    return found
                self._begin(header)
                self._held = rest
            ended = split_at_mark(self._held, _ENDS)
            if ended is None:
                return found.followed_by(self._some())
            body, _, self._held = ended
            found, self._is_inside = found.followed_by(self._told(body, is_whole=True)), False

    def flush(self) -> ParsedText:
        """Returns the rest: a complete call counts, closed or not, and text without a header is content."""
        held, self._held = self._held, ""
        if not self._is_inside:
            return ParsedText("" if held.startswith((MARK, "<|start|>")) else held)
        return self._told(held, is_whole=True)

    def _begin(self, header: str) -> None:
        channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
        self._channel = channel[1] if channel else "final"
        self._function, self._is_inside = recipient[1] if recipient else "", True

    def _some(self) -> ParsedText:
        """Returns the certain part of an unfinished body."""
        if self._function:
            return ParsedText()
        sure, self._held = split_before_mark(self._held, _ENDS)
        return self._told(sure, is_whole=False)

    def _told(self, body: str, *, is_whole: bool) -> ParsedText:
        if self._channel == "analysis" and not self._function:
            return ParsedText(reasoning=body)
        if self._function and is_whole and is_json(body):
            return ParsedText(calls=[ParsedCall(self._function, body.strip())])
        return ParsedText(body)
