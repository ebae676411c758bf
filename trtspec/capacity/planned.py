"""Computes the times of engines before they are built, by the roofline of `trtspec.forecast`; pure."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.capacity.tempo import Turn
from trtspec.forecast.outlook import ForecastPair
from trtspec.forecast.roofline import BatchLoad, Network, round_costs, step
from trtspec.forecast.speedup import tokens_per_round

_BLOCK = 64
"""Contexts are rounded to multiples of this many tokens."""


class Planned:
    """The engines of a pair.

    `acceptance` has the probability of each draft position; it is empty without drafts. With `length` all
    drafts have this length. Without it each iteration uses the length with the largest goodput at its load,
    which may be 0. The adaptive policy learns that too (`trtspec.serving.adaptive`).
    """

    def __init__(
        self, pair: ForecastPair, acceptance: Sequence[float] = (), length: int | None = None
    ) -> None:
        self._pair, self._acceptance = pair, tuple(acceptance[: pair.longest])
        longest = len(self._acceptance)
        self._lengths = range(longest + 1) if length is None else (min(length, longest),)
        self._turns: dict[tuple[int, int], Turn] = {}

    def turn(self, texts: int, context: float) -> Turn:
        block = max(round(context / _BLOCK), 1)
        key = texts, block
        if key not in self._turns:
            load = BatchLoad(texts, block * _BLOCK)
            self._turns[key] = max(
                (self._of(load, length) for length in self._lengths),
                key=lambda turn: turn.tokens / turn.seconds,
            )
        return self._turns[key]

    def prompt_s(self, tokens: float, has_drafts: bool) -> float:
        """Reading a prompt shares the weights with the running step, so only its multiplications are added.

        In fact a step that waits for memory has multiplications to spare, so this is rather too slow.
        """
        pair, rows = self._pair, max(round(tokens), 1)
        readers = [pair.target, *([pair.draft] if pair.draft and has_drafts else [])]
        return sum(_reading_s(network, pair, rows) for network in readers)

    def _of(self, load: BatchLoad, length: int) -> Turn:
        pair = self._pair
        plain_s = step(pair.target, pair.chip, load).seconds
        if not length:
            return Turn(plain_s)
        costs = round_costs(pair.target, pair.draft, pair.chip, load, length, pair.overhead_s)
        drafts = self._acceptance[:length]
        survival = [
            tokens_per_round(drafts[: place + 1]) - tokens_per_round(drafts[:place])
            for place in range(length)
        ]
        return Turn(plain_s * costs.of(length), tuple(survival), plain_s * costs.draft * length)


def _reading_s(network: Network, pair: ForecastPair, rows: int) -> float:
    """Returns the seconds of a prompt's multiplications, and of its ranks' communication, beyond those of one
    row."""
    load = BatchLoad(1, rows // 2)
    whole, one = (step(network, pair.chip, load, count) for count in (rows, 1))
    return whole.multiplying_s + whole.rest_s - one.rest_s
