"""Which GPUs of a server the engines run on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trtspec.base.roles import Role


@dataclass(frozen=True, slots=True)
class Placement:
    """The GPU of each rank, by CUDA's numbers: TensorRT-LLM's `device_ids`, Triton's `gpu_device_ids`."""

    target: tuple[int, ...]
    draft: tuple[int, ...] = ()
    """Empty without a draft, and for one on the CPU."""

    def of(self, role: Role) -> tuple[int, ...]:
        return self.target if role is Role.TARGET else self.draft

    @property
    def is_shared(self) -> bool:
        """True if a GPU has ranks of both."""
        return not set(self.target).isdisjoint(self.draft)


def place(ranks: Mapping[Role, int], gpus: int, chosen: tuple[int, ...] | None = None) -> Placement:
    """Returns the GPUs of engines with so many ranks, on a server with so many GPUs.

    The draft gets GPUs of its own if the server has them, and otherwise shares the target's first ones:
    engines on one GPU take turns on it, so apart they are faster with many requests at once. `chosen` are the
    draft's GPUs where a recipe names them.
    """
    target, draft = ranks[Role.TARGET], ranks.get(Role.DRAFT, 0)
    first = target if target + draft <= gpus else 0
    planned = tuple(range(first, first + draft))
    return Placement(tuple(range(target)), planned if chosen is None else chosen)
