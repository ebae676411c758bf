"""The tree of tokens that heads in an engine of TensorRT-LLM propose, as paths from its root.

A path has a rank for each head, or each token, on its way: (0, 2) is the likeliest token of the first head,
and then the third likeliest of the second.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, TypeVar

from trtspec.base.errors import ModelError
from trtspec.base.findings import errors
from trtspec.checkpoint.engine_draft import EngineDraft
from trtspec.methods.table import NODES
from trtspec.models.heads.head import HeadDescription
from trtspec.models.pair import check_head
from trtspec.models.source import Source, Tensor
from trtspec.serving.executors.tensorrt_llm.runtime_draft import Choices, ChoicesTree

_RANKS = 16
"""TensorRT-LLM identifies a path by four bits for each rank (`runtime/utils/speculativeChoicesUtils.cpp`)."""

Path = tuple[int, ...]


def choices(heads: int, size: int = NODES) -> list[Path]:
    """Returns the tree of so many nodes in which an accepted path is the longest on average.

    That is the greedy construction of the paper (Cai et al. 2024, arXiv 2401.10774, section 2.3.3): always
    the likeliest path that is not there yet. How likely a head's token is by its rank would have to be
    measured; `_likelihood` assumes it. It has fewer nodes where the heads have no more paths: one has 16.
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
    """Returns the assumed probability that a path is the target's: each head is worse than the one before."""
    return prod(float(0.7 * 0.85**head * 0.35**rank) for head, rank in enumerate(path))


Description = TypeVar("Description", bound=HeadDescription)


def fitted(
    source: Source,
    head: HeadDescription | None,
    kind: type[Description],
    name: str,
    families: Collection[str],
) -> Description:
    """Returns the head of a recipe; raises ModelError for one of another kind or target.

    `name` is the kind's for people. Only engines of these `families` can have such a head inside.
    """
    assert head is not None, "a recipe names a head"
    if not isinstance(head, kind):
        raise ModelError(head.folder, f"is a head of {head.method}, not {name}'s", f"name a head of {name}")
    for found in errors(check_head(head, source)):
        raise ModelError(head.folder, f"{found.subject}: {found.problem}", found.repair)
    if source.model_type not in families:
        problem = f"TensorRT-LLM has {name} for {', '.join(families)}, not for {source.model_type}"
        raise ModelError(source.folder / "config.json", problem, "take another method")
    return head


@dataclass(frozen=True, slots=True)
class TreeEngineDraft(EngineDraft):
    """A draft whose heads propose the paths of a tree in each step."""

    runtime: ClassVar[type[ChoicesTree]]
    """The tree, in the form that NVIDIA's runtime takes."""

    head: HeadDescription
    choices: Choices

    @property
    def num_drafted(self) -> int:
        return len(self.choices)

    @property
    def count(self) -> int:
        """The number of tokens on the longest path, each of which has a head."""
        return max(map(len, self.choices))

    def digested(self) -> dict[str, Any]:
        return {"choices": self.choices}

    def parameters(self, *, of_engine: bool) -> dict[str, str]:
        tree = self.runtime(self.choices).parameters()
        return {"decoding_mode": self.mode, **tree} if of_engine else tree

    @property
    def tensors(self) -> dict[str, Tensor]:
        return dict(self.head.tensors)
