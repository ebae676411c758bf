"""Says which guides the xgrammar on the path can follow: where it is, and then a line for each kind of guide.

Each is followed through texts of its own, one token back and forth at each, and through no text that is not.
"""

from __future__ import annotations

import sys

import xgrammar

from tests.fakes.guided import GUIDES, TRIGGERED, VOCABULARY
from trtspec.serving.errors import GuideError
from trtspec.serving.executor import Guide, GuideType
from trtspec.serving.guides.compiler import Bitmasks, Grammar, GuideCompiler

TEXTS = {
    "json": '{"a":[12,true,null]}',
    "json_schema": '{"a":12,"b":["ab",12]}',
    "regex": "abc-12é",
    "ebnf_grammar": "[12,3]",
    "structural_tag": "true",
    "triggered": "x[atrue]y[b",
}
WRONG = {
    "json": "{a",
    "json_schema": '{"c',
    "regex": "abd",
    "ebnf_grammar": "[a",
    "structural_tag": "t1",
    "triggered": "x[ab",
}
BROKEN = (
    Guide(GuideType.JSON_SCHEMA, '{"type": "word"}'),
    Guide(GuideType.REGEX, "(a"),
    Guide(GuideType.EBNF_GRAMMAR, "root ::= x"),
    # What NVIDIA's JSON does not read, and xgrammar's own might.
    Guide(GuideType.STRUCTURAL_TAG, TRIGGERED.guide.replace('"boolean"', '"integer", "minimum": NaN')),
    Guide(GuideType.STRUCTURAL_TAG, TRIGGERED.guide.replace('"]"', r'"\ud800"')),
    Guide(GuideType.STRUCTURAL_TAG, TRIGGERED.guide.replace('{"type": "boolean"}', '"{}"')),
    Guide(GuideType.STRUCTURAL_TAG, TRIGGERED.guide.replace('["[a"]', '"[a"')),
)


def follows(grammar: Grammar, text: str) -> bool:
    """Says whether the grammar allows the text, letter by letter, and its end behind it."""
    size = len(VOCABULARY)
    matcher, bitmasks = grammar.matcher(), Bitmasks(2, size)
    for letter in text:
        token_id = VOCABULARY.index(letter.encode())
        matcher.fill(bitmasks, 1)
        allowed = bool(bitmasks.unpacked(2)[1, token_id])
        assert allowed == bitmasks.allows(1, token_id) == matcher.accept(token_id)
        if not allowed:
            return False
        matcher.back(1)
        assert matcher.accept(token_id)
    matcher.fill(bitmasks, 0)
    return bitmasks.ends(0)


def main() -> None:
    print(xgrammar.__file__)
    compiler = GuideCompiler(VOCABULARY)
    for name, guide in {**GUIDES, "triggered": TRIGGERED}.items():
        try:
            grammar = compiler.compile(guide)
        except GuideError as error:
            print(error)
            continue
        assert follows(grammar, TEXTS[name]), name
        assert not follows(grammar, WRONG[name]), name
        assert grammar.size > 0
        print(name)
    for guide in BROKEN:
        try:
            compiler.compile(guide)
        except GuideError:
            continue
        sys.exit(f"{guide} was taken")


if __name__ == "__main__":
    main()
