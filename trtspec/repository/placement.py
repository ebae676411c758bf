"""Which GPUs of a server the two engines run on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Placement:
    """The GPU of each rank, by CUDA's numbers: TensorRT-LLM's `device_ids`, Triton's `gpu_device_ids`."""

    target: tuple[int, ...]
    draft: tuple[int, ...]

    @property
    def is_shared(self) -> bool:
        """Whether a GPU has ranks of both."""
        return not set(self.target).isdisjoint(self.draft)

    @property
    def gpus(self) -> int:
        """How many GPUs must be there."""
        return 1 + max(*self.target, *self.draft)


def place(target_ranks: int, draft_ranks: int, gpus: int) -> Placement:
    """The draft gets GPUs of its own where the server has them, and shares the target's first ones where not.

    Engines on one GPU take turns on it, so apart they are faster with many requests at once.
    """
    first = target_ranks if target_ranks + draft_ranks <= gpus else 0
    return Placement(tuple(range(target_ranks)), tuple(range(first, first + draft_ranks)))
