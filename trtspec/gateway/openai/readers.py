"""Chooses the readers of an answer by the recipe or the chat template."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from trtspec.gateway.openai import call_forms, harmony, reasoning
from trtspec.gateway.openai.call_forms import Tools
from trtspec.gateway.openai.harmony import HarmonyReader
from trtspec.gateway.openai.parsed import AnswerReader, InTurn
from trtspec.gateway.openai.reasoning import ReasoningForm, ReasoningReader, ReasoningTokens
from trtspec.gateway.openai.tools import BareCalls, TaggedCalls
from trtspec.serving.tokenizer import Tokenizer

NO_PARSER = "none"
"""The name by which a recipe asks for answers as they are."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Defines how the answers to one request are read; each choice has a reader of its own."""

    reader: Callable[[], AnswerReader]
    counter: Callable[[], ReasoningTokens] | None = None
    """Counts the tokens of the reasoning; None where they cannot be told from others."""
    needs_special_tokens: bool = False
    """True if the marks are special tokens, which have no text unless it is asked for."""


def reading(
    template: str, parser: str | None, prompt: str, tools: Tools | None, tokenizer: Tokenizer | None
) -> Reading | None:
    """Returns how an answer to a prompt is read; None if all of it is content.

    `parser` is the recipe's `serving.reasoning_parser`, and None leaves that to the template. `tools` are
    those that may be called; None stands for none.
    """
    if parser == harmony.NAME or (parser is None and harmony.MARK in template):
        return Reading(HarmonyReader, needs_special_tokens=True)
    form = reasoning.FORMS.get(parser) if parser else reasoning.form_of(template)
    is_open = form is not None and form.is_open_behind(prompt)
    calls, marks = (None, ()) if tools is None else _calls(template, tools)
    if form is None and calls is None:
        return None
    thinking = partial(ReasoningReader, form, is_open=is_open) if form else None
    readers = [reader for reader in (thinking, calls) if reader]
    marks = (*marks, *(form.begins + form.ends if form else ()))
    return Reading(
        partial(InTurn, *readers) if len(readers) > 1 else readers[0],
        _counter(form, tokenizer, is_open=is_open) if form and tokenizer else None,
        tokenizer is not None and any(_is_special(tokenizer, mark) for mark in marks),
    )


def _calls(template: str, tools: Tools) -> tuple[Callable[[], AnswerReader], tuple[str, ...]]:
    """Returns how a reader of calls is made, and the marks that it looks for."""
    form = call_forms.form_of(template)
    if form is None:
        return partial(BareCalls, tools), ()
    return partial(TaggedCalls, form, tools), (form.begin, form.end, *form.frame)


def _counter(
    form: ReasoningForm, tokenizer: Tokenizer, *, is_open: bool
) -> Callable[[], ReasoningTokens] | None:
    begin, end = tokenizer.id_of(form.begins[0]), tokenizer.id_of(form.ends[0])
    if begin is None or end is None:
        return None
    return partial(ReasoningTokens, begin, end, tokenizer.bytes_of, is_open=is_open)


def _is_special(tokenizer: Tokenizer, mark: str) -> bool:
    token_id = tokenizer.id_of(mark)
    return token_id is not None and not tokenizer.bytes_of(token_id)
