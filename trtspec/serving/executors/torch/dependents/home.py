"""The target that a draft runs inside."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.serving.executors.torch.cache import Cache
from trtspec.serving.executors.torch.cache_slots import CacheSlots
from trtspec.serving.executors.torch.engine import TorchEngineConfig
from trtspec.serving.executors.torch.model import Decoder


@dataclass(frozen=True, slots=True)
class Home:
    """A loaded target, whose slots a draft inside it uses."""

    config: TorchEngineConfig
    model: Decoder
    cache: Cache
    slots: CacheSlots
