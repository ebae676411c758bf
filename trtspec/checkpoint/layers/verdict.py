"""Says in words how the chosen layers agree with the target, and whether they pay."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.checkpoint.layers.chosen import ChosenLayers
from trtspec.forecast.speedup import RoundCosts, speedup

LEAST_GAIN = 1.1
_LONGEST = 8


def found(chosen: ChosenLayers, weight_share: float) -> str:
    """One sentence on the layers, their agreement and what that brings at best."""
    length, gain = best_round(chosen.agreement, weight_share)
    layers = ", ".join(map(str, chosen.layers))
    return (
        f"layers {layers} of {chosen.of} say what the target says in {chosen.agreement:.0%} of"
        f" {chosen.tokens} tokens of its answers to {chosen.provenance['texts']} texts"
        f" (spread evenly, as many layers: {chosen.spread:.0%}; {chosen.tried} sets tried);"
        f" a token of theirs reads {weight_share:.0%} of the target's weights: at best {gain:.2f}x,"
        f" with K = {length}"
    )


def best_round(agreement: float, weight_share: float) -> tuple[int, float]:
    """Returns the best K and its speed-up, where a draft token costs what it reads of the target's weights.

    A round of K tokens then takes 1 + K times that (Leviathan et al. 2023, section 3.3): verifying is thought
    to cost no more than a plain step, and a round nothing else, so that no deployment does better.
    """
    gains = {
        length: speedup([agreement] * length, RoundCosts(weight_share)) for length in range(1, _LONGEST + 1)
    }
    length = max(gains, key=gains.__getitem__)
    return length, gains[length]


def worries(chosen: ChosenLayers, weight_share: float) -> Iterator[str]:
    """Yields a sentence where the layers hardly pay, and one for texts that are not the user's."""
    length, gain = best_round(chosen.agreement, weight_share)
    if gain < LEAST_GAIN:
        yield (
            f"drafts of these layers {'hardly' if gain > 1 else 'do not'} pay: at best {gain:.2f}x, with K ="
            f" {length}; fewer layers (layer_search.count) or a small model as draft may"
        )
    if chosen.provenance.get("dataset_digest") is None:
        yield "the layers were chosen with trtspec's own texts: name your texts in draft.layer_search.dataset"
