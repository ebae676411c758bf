"""The search for the layers of a draft; pure.

SWIFT (Xia et al. 2024, arXiv 2410.06916, section 4.1) keeps the best of many random sets, with a step of
Bayesian optimization now and then. Here layers are removed one by one, always the one without which the draft
agrees most with the target. The remaining tries go into sets that differ from the best one in one layer. With
as many tries that finds better sets (`tests/perf/README.md`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

RETRIED = 6
"""The number of layers that are tried again: those that hurt least when they were last tried. One of them is
removed."""

Layers = tuple[int, ...]
Agreement = Callable[[Layers], float]


@dataclass(frozen=True, slots=True)
class FoundLayers:
    """The best set of layers that a search has found."""

    layers: Layers
    agreement: float
    """The set's agreement with the target."""
    tried: int
    """The number of sets that were tried."""
    curve: dict[int, float]
    """The agreement of the sets tried on the way, by their number of layers."""


def search(of: int, count: int, agreement: Agreement, tries: int, seed: int) -> FoundLayers:
    """Returns a set of `count` of so many layers; `agreement` is called at most `tries` times, but once.

    The first layer and the last stay, as in SWIFT, where `count` leaves any others.
    """
    asked = _Asked(agreement, tries)
    movable = list(range(of) if count < 3 else range(1, of - 1))
    kept, curve = tuple(range(of)), dict[int, float]()
    hurt = {layer: 1 - asked(_without(kept, layer), 0.0) for layer in movable}
    while len(kept) > count:
        least = sorted(hurt, key=hurt.__getitem__)[:RETRIED]
        if len(kept) < of:
            for layer in least:
                hurt[layer] = 1 - asked(_without(kept, layer), 1 - hurt[layer])
        gone = min(least, key=hurt.__getitem__)
        del hurt[gone]
        kept = _without(kept, gone)
        if kept in asked.known:
            curve[len(kept)] = asked.known[kept]
    best = asked.known.get(kept)
    if best is None:  # There were too few tries.
        best = curve[count] = agreement(kept)
    kept, best = _improved(kept, best, movable, asked, random.Random(seed))  # noqa: S311
    return FoundLayers(kept, best, len(asked.known), curve)


class _Asked:
    """Asks for the agreement of a set once; when the tries are used up, it returns the guess of the
    caller."""

    def __init__(self, agreement: Agreement, tries: int) -> None:
        self._agreement, self._tries = agreement, tries
        self.known: dict[Layers, float] = {}

    @property
    def is_over(self) -> bool:
        return len(self.known) >= self._tries

    def __call__(self, layers: Layers, thought: float) -> float:
        if layers not in self.known:
            if self.is_over:
                return thought
            self.known[layers] = self._agreement(layers)
        return self.known[layers]


def _improved(
    kept: Layers, best: float, movable: Sequence[int], asked: _Asked, chance: random.Random
) -> tuple[Layers, float]:
    """Exchanges single layers in random order if that raises the agreement, until no exchange does."""
    while not asked.is_over:
        changes = [(one, other) for one in movable if one in kept for other in movable if other not in kept]
        chance.shuffle(changes)
        for one, other in changes:
            changed = tuple(sorted((*_without(kept, one), other)))
            if (found := asked(changed, 0.0)) > best:
                kept, best = changed, found
                break
        else:
            break
    return kept, best


def _without(kept: Layers, layer: int) -> Layers:
    return tuple(other for other in kept if other != layer)
