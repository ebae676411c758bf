"""A vocabulary of 96 tokens in which JSON can be written, and what xgrammar itself says of guides over it."""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any

import torch
import xgrammar

from trtspec.serving.executor import Guide, GuideType
from trtspec.serving.guides.guides import Guides

END, OTHER_END = 94, 95
WORDS = ('":', '",', '{"', "true", "null", "12", "}]", ' "', "ab", "]}", ", ")
_TEXTS = [*string.ascii_lowercase, *string.digits, *'{}[]":,.-+ \\/', *WORDS, "é", "漢", "AB"]
# Some ids have no text, as special tokens and those of a padded vocabulary have none.
VOCABULARY = [text.encode() for text in _TEXTS] + [b""] * (96 - len(_TEXTS))
SCHEMA = """{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items":
    {"enum": ["ab", "abc", 12]}, "maxItems": 3}}, "required": ["a", "b"], "additionalProperties": false}"""
EBNF = 'root ::= "[" item ("," item){0,4} "]"\nitem ::= [0-9]{1,4}'
GUIDES = {
    "json": Guide(GuideType.JSON, end_ids=(END,)),
    "json_schema": Guide(GuideType.JSON_SCHEMA, SCHEMA, (END,)),
    "regex": Guide(GuideType.REGEX, r"[a-c]{3,9}(-12){1,4}é?", (END,)),
    "ebnf_grammar": Guide(GuideType.EBNF_GRAMMAR, EBNF, (END,)),
    "structural_tag": Guide(
        GuideType.STRUCTURAL_TAG,
        '{"type": "structural_tag", "format": {"type": "json_schema", "json_schema": {"type": "boolean"}}}',
        (END,),
    ),
}


TRIGGERED = Guide(
    GuideType.STRUCTURAL_TAG,
    '{"structures": [{"begin": "[a", "schema": {"type": "boolean"}, "end": "]"}], "triggers": ["[a"]}',
    (END,),
)
"""A structural tag in the form of before 0.1.25."""


def guides() -> Guides:
    return Guides(lambda size: VOCABULARY[:size], len(VOCABULARY))


def text_of(token_ids: list[int]) -> str:
    return b"".join(VOCABULARY[token_id] for token_id in token_ids).decode()


class Judge:
    """xgrammar, told the real end tokens, as its documentation shows it: token by token."""

    def __init__(self, guide: Guide) -> None:
        self._tokens = xgrammar.TokenizerInfo(
            VOCABULARY, xgrammar.VocabType.RAW, stop_token_ids=list(guide.end_ids)
        )
        compiler = xgrammar.GrammarCompiler(self._tokens)
        read: dict[GuideType, Callable[[str], Any]] = {
            GuideType.JSON: lambda _: compiler.compile_builtin_json_grammar(),
            GuideType.JSON_SCHEMA: compiler.compile_json_schema,
            GuideType.REGEX: compiler.compile_regex,
            GuideType.EBNF_GRAMMAR: compiler.compile_grammar,
            GuideType.STRUCTURAL_TAG: compiler.compile_structural_tag,
        }
        self._grammar = read[guide.guide_type](guide.guide)

    def begin(self) -> xgrammar.GrammarMatcher:
        return xgrammar.GrammarMatcher(self._grammar)

    def is_complete(self, token_ids: list[int]) -> bool:
        matcher = self.begin()
        return all(map(matcher.accept_token, token_ids)) and matcher.is_completed()


def masked(matcher: xgrammar.GrammarMatcher, logits: torch.Tensor) -> torch.Tensor:
    """The logits `[vocab]` of the tokens that the grammar allows next, and -inf for the others."""
    bitmask = xgrammar.allocate_token_bitmask(1, len(logits))
    matcher.fill_next_token_bitmask(bitmask)
    logits = logits[None].clone()
    xgrammar.apply_token_bitmask_inplace(logits, bitmask)
    return logits[0]
