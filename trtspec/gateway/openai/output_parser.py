"""Chooses the parsers of an answer, by the recipe or the chat template."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from trtspec.gateway.openai import reasoning_parser, tool_parser
from trtspec.gateway.openai.parsed_text import InTurn, OutputParser
from trtspec.gateway.openai.reasoning_parser import ReasoningForm, ReasoningTokens, TaggedReasoning
from trtspec.gateway.openai.tool_parser import BareCalls, TaggedCalls, Tools
from trtspec.serving.tokenizer import Tokenizer

NO_PARSER = "none"
"""The name by which a recipe asks for answers as they are."""


@dataclass(frozen=True, slots=True)
class OutputParsing:
    """Defines how the answers to one request are parsed; each choice has a parser of its own."""

    parser: Callable[[], OutputParser]
    counter: Callable[[], ReasoningTokens] | None = None
    """Counts the tokens of the reasoning; None where they cannot be told from others."""
    needs_special_tokens: bool = False
    """True if the marks are special tokens, which have no text unless it is asked for."""


def choose_parsing(
    template: str, parser: str | None, prompt: str, tools: Tools | None, tokenizer: Tokenizer | None
) -> OutputParsing | None:
    """Returns how an answer to a prompt is parsed; None if all of it is content.

    `parser` is the recipe's `serving.reasoning_parser`, and None leaves that to the template. `tools` are
    those that may be called; None stands for none.
    """
    form = reasoning_parser.FORMS.get(parser) if parser else reasoning_parser.form_of(template)
    is_open = form is not None and form.is_open_behind(prompt)
    calls, marks = (None, ()) if tools is None else _calls(template, tools)
    if form is None and calls is None:
        return None
    thinking = partial(TaggedReasoning, form, is_open=is_open) if form else None
    parsers = [parse for parse in (thinking, calls) if parse]
    marks = (*marks, *(form.begins + form.ends if form else ()))
    return OutputParsing(
        partial(InTurn, *parsers) if len(parsers) > 1 else parsers[0],
        _counter(form, tokenizer, is_open=is_open) if form and tokenizer else None,
        tokenizer is not None and any(_is_special(tokenizer, mark) for mark in marks),
    )


def _calls(template: str, tools: Tools) -> tuple[Callable[[], OutputParser], tuple[str, ...]]:
    """Returns how a parser of calls is made, and the marks that it looks for."""
    form = tool_parser.form_of(template)
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
