"""Compares the vocabularies of a target and a draft with translation between them.

No difference makes a text wrong; each finding says its cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trtspec.base.findings import Finding, note
from trtspec.methods.method import HETEROGENEOUS

if TYPE_CHECKING:
    from trtspec.models.pair import Member

_COST = (
    "text and drafts are translated, which takes about 0.2 ms per round; most is accepted where both "
    "tokenize alike"
)


def translated(target: Member, draft: Member) -> Iterator[Finding]:
    """Yields the size of the common vocabulary, and which of the draft's own tokens cannot be used."""
    ours, theirs = target.tokenizer, draft.tokenizer
    own, other = set(ours.tokens.values()), set(theirs.tokens.values())
    if ours.tokens == theirs.tokens:
        difference = (
            f"speculation.method has {HETEROGENEOUS}, but both have the same tokens with the same ids"
        )
        yield note("vocabularies", difference, effect="translation only takes time: leave it out")
    else:
        common = len(own & other)
        difference = f"{common} of the target's {len(own)} tokens are among the draft's {len(other)}"
        yield note("vocabularies", difference, effect=_COST)
    for who, side in (("target", target), ("draft", draft)):
        size, rows = side.tokenizer.size, side.source.vocab_size
        if size > rows:
            difference = f"the {who}'s tokenizer has ids up to {size - 1}, but its embedding has {rows} rows"
            repair = f"use the tokenizer that belongs to the {who}"
            yield Finding(
                "vocabulary", difference, repair, effect="a text with such an id cannot be computed"
            )
    if not draft.source.end_ids:
        effect = "the draft continues after the end of a text; fewer drafts are accepted there"
        yield note("end tokens", "the draft names none", effect=effect)
    yield note(
        "sampling",
        "engines sample by token id, and the same id is another token in each; only two engines of the "
        "torch backend in one process sample alike",
        effect="other drafts are the likeliest tokens; fewer are accepted at higher temperatures",
    )
