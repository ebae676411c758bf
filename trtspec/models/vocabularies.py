"""Compares the vocabularies of a target and a draft between which texts and drafts are translated.

Nothing of it makes a text wrong, whatever the draft proposes; what it costs is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trtspec.base.findings import Finding, note
from trtspec.methods.method import HETEROGENEOUS

if TYPE_CHECKING:
    from trtspec.models.pair import Member

_COST = "text and drafts are translated, for some 0.2 ms a round; where both cut text alike most is accepted"


def translated(target: Member, draft: Member) -> Iterator[Finding]:
    """Yields what the two have in common, and what of the draft's own tokens cannot be used."""
    ours, theirs = target.tokenizer, draft.tokenizer
    own, other = set(ours.tokens.values()), set(theirs.tokens.values())
    if ours.tokens == theirs.tokens:
        difference = (
            f"speculation.method has {HETEROGENEOUS}, and both have the same tokens under the same ids"
        )
        yield note("vocabularies", difference, effect="it only takes time: leave it out")
    else:
        common = len(own & other)
        difference = (
            f"{common} of {len(own)} tokens of the target are the draft's too, which has {len(other)}"
        )
        yield note("vocabularies", difference, effect=_COST)
    for who, side in (("target", target), ("draft", draft)):
        size, rows = side.tokenizer.size, side.source.vocab_size
        if size > rows:
            difference = f"the {who}'s tokenizer has ids up to {size - 1}, its embedding {rows} rows"
            repair = f"take the tokenizer that belongs to the {who}"
            yield Finding(
                "vocabulary", difference, repair, effect="a text with such an id cannot be computed"
            )
    if not draft.source.end_ids:
        effect = "the draft goes on where a text ends; fewer drafts are accepted there"
        yield note("end tokens", "the draft names none", effect=effect)
    yield note(
        "sampling",
        "engines draw by token id, and the same id is another token in each; only two of the torch backend in"
        " one process draw alike",
        effect="others' drafts are their likeliest tokens; fewer are accepted, the hotter a text is sampled",
    )
