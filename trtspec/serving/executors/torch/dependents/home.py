"""The target that a draft runs inside, and its states, which a head continues from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trtspec.serving.executors.torch.cache import Cache, SlotMemory
from trtspec.serving.executors.torch.cache_slots import CacheSlots
from trtspec.serving.executors.torch.engine import TorchEngineConfig
from trtspec.serving.executors.torch.model import Decoder
from trtspec.serving.executors.torch.spans import Span


@dataclass(frozen=True, slots=True)
class Home:
    """A loaded target, whose slots a draft inside it uses."""

    config: TorchEngineConfig
    model: Decoder
    cache: Cache
    slots: CacheSlots


class SlotStates(SlotMemory):
    """A state of `width` for each position of each slot: `combine` of the target's states at `depths`.

    The target writes them as it computes. A head writes its own states for draft positions after them, which
    the target overwrites later.
    """

    def __init__(
        self, home: Home, width: int, depths: Sequence[int], combine: Callable[[Sequence[Tensor]], Tensor]
    ) -> None:
        config, device = home.config, home.model.embedding.device
        super().__init__((1, 1, width), config.limits.max_seq_len, config.dtype, device)
        self.depths, self._combine = depths, combine
        home.cache.beside.append(self)
        home.model.listener = self

    def hear(self, states: Sequence[Tensor], spans: Sequence[Span]) -> None:
        """Stores the states of the target's rows."""
        self.write(self._combine(states), spans)

    def write(self, states: Tensor, spans: Sequence[Span]) -> None:
        """Stores `states` `[rows, width]` of the rows of all spans, in their order."""
        for span, part in zip(spans, torch.split(states, [span.rows for span in spans]), strict=True):
            self._of(span)[:] = part

    def read(self, spans: Sequence[Span]) -> Tensor:
        """Returns the states `[rows, width]` of the rows of all spans, in their order."""
        return torch.cat([self._of(span) for span in spans])

    def _of(self, span: Span) -> Tensor:
        end = span.start + span.rows
        return self.grown(span.slot, end)[0, 0, span.start : end]
