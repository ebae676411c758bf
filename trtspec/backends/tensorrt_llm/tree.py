"""The tree of tokens that heads in an engine of TensorRT-LLM propose, as paths from its root.

A path has a rank for each head, or each token, on its way: (0, 2) is the likeliest token of the first head,
and then the third likeliest of the second.
"""

from __future__ import annotations

import heapq
from math import prod

from trtspec.methods.medusa import NODES

_RANKS = 16
"""TensorRT-LLM identifies a path by four bits for each rank (`runtime/utils/speculativeChoicesUtils.cpp`)."""

Path = tuple[int, ...]


def choices(heads: int, size: int = NODES) -> list[Path]:
    """Returns the tree of so many nodes in which an accepted path is the longest on average.

    That is the greedy construction of the paper (Cai et al. 2024, arXiv 2401.10774, section 2.3.3): always
    the likeliest path that is not there yet. How likely a head's token is by its rank would have to be
    measured; `_accuracy` assumes it. It has fewer nodes where the heads have no more paths: one has 16.
    """
    found: list[Path] = []
    waiting: list[tuple[float, Path]] = [(-_likelihood((0,)), (0,))]
    while waiting and len(found) < size:
        _, path = heapq.heappop(waiting)
        found.append(path)
        following = [(*path[:-1], path[-1] + 1), (*path, 0)]
        for other in following:
            if len(other) <= heads and other[-1] < _RANKS:
                heapq.heappush(waiting, (-_likelihood(other), other))
    return sorted(found, key=lambda path: (len(path), path))


def _likelihood(path: Path) -> float:
    return prod(_accuracy(head, rank) for head, rank in enumerate(path))


def _accuracy(head: int, rank: int) -> float:
    """Returns the assumed probability that this token of a head is the target's: each head is worse than the
    one before.
    """
    return float(0.7 * 0.85**head * 0.35**rank)
