"""The costs of a round, from times that a calibration run has measured; pure.

The model is a line in each: a draft of K tokens takes `c K` and something fixed, its verification `1 + v K`
and something fixed, and a round `1 + o + (c + v) K`, all in steps of the target alone. Least squares over all
of them at once finds the costs, each time weighted by its inverse: a tenth more of a short one is as wrong as
a tenth more of a long one. None is below zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trtspec.forecast.speedup import RoundCosts

_COLUMNS = ("draft", "verified", "overhead", "draft begins", "verification begins")


@dataclass(frozen=True, slots=True)
class FittedSeconds:
    """Seconds that were measured at one load, by the length K of the draft; the best guess is a median.

    Where only rounds are seen, `drafts` and `verifications` are empty. The fit then charges the whole cost of
    a token to the draft.
    """

    plain_s: float
    """The seconds of a step of the target alone."""
    rounds: Mapping[int, float]
    """The seconds of whole rounds, of which there must be one."""
    drafts: Mapping[int, float] = field(default_factory=dict)
    """The seconds of drafts."""
    verifications: Mapping[int, float] = field(default_factory=dict)
    """The seconds of verifications."""


def fit(calibration: FittedSeconds) -> RoundCosts:
    """Returns the costs that fit what was measured best; raises ValueError where no round was measured."""
    if not calibration.rounds:
        raise ValueError("no round was measured")
    plain, rows, costs = calibration.plain_s, [], []
    sees_parts = bool(calibration.drafts and calibration.verifications)
    for length, seconds in calibration.rounds.items():
        rows.append((length, length if sees_parts else 0, 1, 0, 0))
        costs.append((seconds / plain - 1, seconds / plain))
    if sees_parts:
        for length, seconds in calibration.drafts.items():
            rows.append((length, 0, 0, 1, 0))
            costs.append((seconds / plain, seconds / plain))
        for length, seconds in calibration.verifications.items():
            rows.append((0, length, 0, 0, 1))
            costs.append((seconds / plain - 1, seconds / plain))
    weights = np.array([1 / whole for _, whole in costs])
    found = _least_squares(
        np.array(rows, float) * weights[:, None], np.array([cost for cost, _ in costs]) * weights
    )
    by_name = dict(zip(_COLUMNS, found, strict=True))
    return RoundCosts(by_name["draft"], by_name["overhead"], by_name["verified"])


def _least_squares(matrix: NDArray[np.float64], wanted: NDArray[np.float64]) -> Sequence[float]:
    """Returns the solution with the least squares of which no number but the last is below zero.

    A verification may begin below a plain step, which is streamed and has more to say. What would be below
    zero is left out, the lowest first, and the rest is solved again.
    """
    kept = [column for column in range(matrix.shape[1]) if matrix[:, column].any()]
    while True:
        solved = np.linalg.lstsq(matrix[:, kept], wanted, rcond=None)[0]
        bounded = [(value, column) for value, column in zip(solved, kept, strict=True) if column < 4]
        lowest, column = min(bounded, default=(0.0, 0))
        if lowest >= 0:
            by_column = dict(zip(kept, solved, strict=True))
            return [float(by_column.get(column, 0.0)) for column in range(matrix.shape[1])]
        kept.remove(column)
