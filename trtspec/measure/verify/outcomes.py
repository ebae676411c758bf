"""Sorts continuations into outcomes that are common enough to be counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

Continuation = tuple[int, ...]


def outcomes(samples: Sequence[Sequence[Continuation]], least: int) -> dict[Continuation, list[int]]:
    """Returns how often each outcome occurred in each sample; outcomes are prefixes of continuations.

    An outcome is a prefix that occurred at least `least` times in all samples together. A continuation counts
    for its longest outcome, so rare ones are pooled with those of the same prefix. The empty prefix has all
    that share no common prefix. All samples together decide on the outcomes, so the choice favours no
    difference.
    """
    together = [continuation for sample in samples for continuation in sample]
    seen = Counter(said[:length] for said in together for length in range(1, len(said) + 1))
    common = {beginning for beginning, count in seen.items() if count >= least}

    def outcome(said: Continuation) -> Continuation:
        return next((said[:n] for n in range(len(said), 0, -1) if said[:n] in common), ())

    counts = [Counter(map(outcome, sample)) for sample in samples]
    table = {each: [count[each] for count in counts] for each in set().union(*counts)}
    # Without its common continuations a prefix may be rare itself.
    for length in range(max(map(len, table)), 0, -1):
        for each in [outcome for outcome in table if len(outcome) == length and sum(table[outcome]) < least]:
            parent = table.setdefault(each[:-1], [0] * len(samples))
            table[each[:-1]] = [a + b for a, b in zip(parent, table.pop(each), strict=True)]
    if sum(table.get((), [least])) < least and len(table) > 1:
        rest = table.pop(())
        rarest = min(table, key=lambda beginning: (sum(table[beginning]), beginning))
        table[rarest] = [a + b for a, b in zip(table[rarest], rest, strict=True)]
    return table
