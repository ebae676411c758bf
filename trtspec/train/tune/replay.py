"""Replays a known answer: computes the rounds that speculative decoding would have made for it.

The target does not run: a draft is accepted as far as it equals the answer. The draft runs only once over the
answer, to give its choice after each prefix. A draft token at position j + 1 counts only if the one at j was
accepted, so its prefix is always the answer itself. So one pass over the text gives the rounds of every K
exactly. Rounds and drafters are those of `trtspec.serving.rounds`; each answer counts as the first of its
client.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trtspec.serving.drafters.source import ENGINE, Drafting, Offer
from trtspec.serving.drafters.sources import make_source
from trtspec.serving.executor import Request
from trtspec.serving.text import Text, common_prefix
from trtspec.train.tune.answer import RecordedAnswer

Choices = Sequence[int]
"""The draft's choice after each prefix of an answer;

`SILENCE` if it would propose nothing more. It ends where the answer has a token that the draft lacks, or
exceeds the draft's longest sequence.
"""
SILENCE = -1
_END = -2


class Round(NamedTuple):
    """A round of a replay."""

    origin: str
    length: int
    """The number of draft tokens. With 0 the target alone gave one token."""
    accepted: int
    """The number of accepted draft tokens: those equal to the answer's."""


@dataclass(slots=True)
class Replay:
    """The replay of an answer."""

    rounds: Counter[Round] = field(default_factory=Counter)
    """The number of times that each round occurred."""
    alone: int = 0
    """The number of steps of the target alone."""


def replay(
    answer: RecordedAnswer, drafting: Drafting, choices: Sequence[Choices] | None, length: int
) -> Replay:
    """Returns the replay of an answer with K = `length`.

    `choices` has the draft's choices, if any: entry i has them for token i of a round, and a round has no
    more tokens than there are entries. For a draft model, which reads only the text, all entries are equal; a
    head continues with states of its own, so its entries differ.
    """
    text, said = Text(answer.prompt), [*answer.tokens, *([_END] if answer.stopped else [])]
    drafter = make_source(drafting, lambda: _Told(said, text, choices or ())).drafter(text, "")
    found, done = Replay(), 0
    while done < len(said):
        offer = drafter.offer()
        # An answer with an end token was not cut by max_tokens.
        left = length if answer.stopped else min(length, len(said) - done - 1)
        if offer and (longest := min(left, offer.room)):
            draft = at_once(drafter.propose(Request(text, longest), math.inf))
            accepted = common_prefix(draft, said[done:], min(len(draft), len(said) - done))
            found.rounds[Round(offer.origin, len(draft), accepted)] += 1
            step = accepted + 1
        else:
            step = len(said) - done if offer else min(drafter.pause, len(said) - done)
            found.alone += step
        text.extend(said[done : done + step])
        done += step
    return found


def at_once(proposal: Coroutine[Any, Any, list[int]]) -> list[int]:
    """Returns the result of a coroutine that never waits."""
    try:
        proposal.send(None)
    except StopIteration as done:
        tokens: list[int] = done.value
        return tokens
    raise AssertionError("a drafter without an engine waits for something")


class _Told:
    """Replaces the draft engine, and its drafter for one text, by known choices.

    It proposes correct ones as far as they equal the answer, and then wrong ones.
    """

    pause = 32
    silence = "draft_at_rest"

    def __init__(self, said: list[int], text: Text, choices: Sequence[Choices]) -> None:
        self._said, self._text, self._begin, self._choices = said, text, len(text), choices

    def drafter(self, text: Text, tenant: str = "") -> _Told:
        return self

    def reap(self, now: float) -> None:
        """Does nothing: known choices need no request."""

    def offer(self) -> Offer:
        is_known = len(self._text) - self._begin < len(self._choices[0])
        return Offer(ENGINE, len(self._text) if is_known else 0)

    async def propose(self, request: Request, deadline: float) -> list[int]:
        draft: list[int] = []
        begun, most = len(self._text) - self._begin, min(request.max_tokens, len(self._choices))
        for place, known in enumerate(self._choices[:most], begun):
            if place >= min(len(known), len(self._said)):
                break
            if known[place] == SILENCE:
                return draft
            draft.append(known[place])
            if known[place] != self._said[place]:
                break  # Its choices after a wrong token are unknown, and do not matter.
        return draft + [SILENCE] * (most - len(draft))

    def end(self) -> None:
        """Keeps nothing."""
