"""Replays a known answer: computes the rounds that speculative decoding would have made of it.

The target is not asked: a draft is accepted as far as it says what the answer says. Nor is the draft, but
for its own choice after each beginning of the answer: it is only asked for the token at position j + 1 where
that at j was accepted, so what stands before its choice is the answer itself. So one pass over the text gives
the rounds of every K exactly. Rounds are those of `trtspec.serving.rounds`, and drafters its own, to which
every answer is that of a client without earlier ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trtspec.serving.drafters.source import ENGINE, Drafting, DraftSource, Offer
from trtspec.serving.drafters.sources import make_source
from trtspec.serving.executor import Request
from trtspec.serving.text import Text, common_prefix
from trtspec.train.tune.answer import RecordedAnswer

Choices = Sequence[int]
"""What a draft would say after each beginning of an answer; `SILENCE` where it would say nothing more.

It ends where the answer has a token that the draft lacks, or is longer than the draft's texts.
"""
SILENCE = -1
_END = -2


class Round(NamedTuple):
    """A round of a replay."""

    origin: str
    length: int
    """The number of draft tokens. With 0 the draft said nothing, and the target one token."""
    accepted: int
    """The number of draft tokens, from the first, that were the answer's."""


@dataclass(slots=True)
class Replay:
    """The replay of an answer."""

    rounds: Counter[Round] = field(default_factory=Counter)
    """How often each round came."""
    alone: int = 0
    """The steps that the target decoded alone."""


def replay(
    answer: RecordedAnswer, drafting: Drafting, choices: Sequence[Choices] | None, length: int
) -> Replay:
    """Returns what comes of an answer with K = `length`.

    `choices` are those of the draft, if any: entry i has what it would say as token i of a round, and a round
    has no more tokens than there are entries. A draft model, which reads the text alone, says the same as
    each of them; a head goes on with states of its own, and does not.
    """
    text, said = Text(answer.prompt), [*answer.tokens, *([_END] if answer.stopped else [])]
    drafter = _source(said, len(text), drafting, choices).drafter(text, "")
    found, done = Replay(), 0
    while done < len(said):
        offer = drafter.offer()
        # What ended by itself was allowed to go on.
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


def _source(
    said: list[int], begin: int, drafting: Drafting, choices: Sequence[Choices] | None
) -> DraftSource:
    return make_source(drafting, lambda: _ToldSource(said, begin, choices or ()))


def at_once(proposal: Coroutine[Any, Any, list[int]]) -> list[int]:
    """Returns what a coroutine returns that waits for nothing."""
    try:
        proposal.send(None)
    except StopIteration as done:
        tokens: list[int] = done.value
        return tokens
    raise AssertionError("a drafter without an engine waits for something")


class _ToldSource:
    """Stands for the draft engine, whose choices are known."""

    def __init__(self, said: list[int], begin: int, choices: Sequence[Choices]) -> None:
        self._said, self._begin, self._choices = said, begin, choices

    def drafter(self, text: Text, tenant: str = "") -> _ToldDrafter:
        return _ToldDrafter(self._said, text, self._begin, self._choices)

    def reap(self, now: float) -> None:
        """Ends nothing: what is known is said at once."""


class _ToldDrafter:
    """Proposes what the draft would: the answer as far as its choices are the answer's, and then others."""

    pause = 32
    silence = "draft_at_rest"

    def __init__(self, said: list[int], text: Text, begin: int, choices: Sequence[Choices]) -> None:
        self._said, self._text, self._begin, self._choices = said, text, begin, choices

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
                break  # What it says behind a wrong token is unknown, and nobody's loss.
        return draft + [SILENCE] * (most - len(draft))

    def end(self) -> None:
        """Keeps nothing."""
