"""Continuations sorted into outcomes that are common enough to be counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

Continuation = tuple[int, ...]


def outcomes(samples: Sequence[Sequence[Continuation]], least: int) -> dict[Continuation, list[int]]:
    """Returns how often each outcome came in each sample; outcomes are beginnings of continuations.

    An outcome is a beginning that came at least `least` times in all samples together; a continuation counts
    for the longest that it has, so that what is rare is pooled with what begins alike. The empty beginning
    is what begins like nothing common. The choice looks at all samples alike, so it favours no difference.
    """
    together = [continuation for sample in samples for continuation in sample]
    seen = Counter(said[:length] for said in together for length in range(1, len(said) + 1))
    common = {beginning for beginning, count in seen.items() if count >= least}

    def outcome(said: Continuation) -> Continuation:
        return next((said[:n] for n in range(len(said), 0, -1) if said[:n] in common), ())

    counts = [Counter(map(outcome, sample)) for sample in samples]
    table = {each: [count[each] for count in counts] for each in set().union(*counts)}
    # What is left of a beginning beside its common continuations may be rare itself.
    for length in range(max(map(len, table)), 0, -1):
        for each in [outcome for outcome in table if len(outcome) == length and sum(table[outcome]) < least]:
            parent = table.setdefault(each[:-1], [0] * len(samples))
            table[each[:-1]] = [a + b for a, b in zip(parent, table.pop(each), strict=True)]
    if sum(table.get((), [least])) < least and len(table) > 1:
        rest = table.pop(())
        rarest = min(table, key=lambda beginning: (sum(table[beginning]), beginning))
        table[rarest] = [a + b for a, b in zip(table[rarest], rest, strict=True)]
    return table
