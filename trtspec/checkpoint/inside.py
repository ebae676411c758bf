"""Defines a draft inside its target's engine, which is part of the target's checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

from trtspec.base.findings import Finding
from trtspec.checkpoint.blueprint import Blueprint, draw
from trtspec.checkpoint.convert_options import ConvertOptions, Mapping
from trtspec.methods.method import Method
from trtspec.models.families.family import FamilyTensor
from trtspec.models.heads.head import HeadDescription
from trtspec.models.source import Source


class DraftInside(ABC):
    """A draft inside an engine; the backend lists the methods for which it builds one."""

    mode: ClassVar[str]
    """TensorRT-LLM's speculative_decoding_mode of the engine."""
    reduce_fusion: ClassVar[bool] = True
    """False if `trtllm-build` switches its option `reduce_fusion` off for the engine."""

    @classmethod
    @abstractmethod
    def usual(cls, source: Source, method: Method, head: HeadDescription | None) -> DraftInside:
        """Returns the draft of a recipe's method with its default size, with its head if it has one.

        Raises ModelError for a head, or a target, that it cannot be in.
        """

    @abstractmethod
    def of_size(self, size: int) -> DraftInside:
        """Returns the draft that proposes so many tokens in each step; raises ValueError for too many.

        If other options set the number, it raises ValueError for any other one. `error.args` has the problem
        and the repair.
        """

    @property
    @abstractmethod
    def num_drafted(self) -> int:
        """The number of tokens that it proposes, and the target verifies, in each step."""

    @property
    @abstractmethod
    def reason(self) -> str:
        """The reason for `num_drafted` if the recipe does not set it."""

    @property
    @abstractmethod
    def count(self) -> int:
        """The number of its heads, each of which computes logits; 0 for a draft without any."""

    @property
    def num_reserved(self) -> int:
        """The number of tokens that `trtllm-build` adds to `max_seq_len` for it; no sequence may use them."""
        return self.num_drafted

    @property
    def kv_layers(self) -> int:
        """The number of its layers whose keys and values are in the target's KV cache, of the same sizes."""
        return 0

    def misfit(self, mapping: Mapping) -> Finding | None:
        """Returns why it cannot be split over the target's ranks; None if it can be, as the target is."""
        return None

    @property
    @abstractmethod
    def title(self) -> str:
        """The name for people."""

    @abstractmethod
    def digested(self) -> dict[str, Any]:
        """Returns what a checkpoint depends on beside the files of target and head."""

    @abstractmethod
    def draw(self, source: Source, options: ConvertOptions) -> Blueprint:
        """Plans the checkpoint of the target with the draft in it.

        Raises ModelError for a draft or a target that the engine cannot have, and what `draw` raises.
        """

    @abstractmethod
    def weights(self) -> Iterator[FamilyTensor]:
        """Yields what the checkpoint has beside the target's weights."""

    @abstractmethod
    def parameters(self, *, of_engine: bool) -> dict[str, str]:
        """Returns the parameters of the Triton model that loads the engine.

        That is the engine's own model, or else the one in front, which has the engines in its process.
        """


def draw_whole(source: Source, options: ConvertOptions, inside: DraftInside | None) -> Blueprint:
    """Plans the checkpoint of a model, with a draft in it if it has one; raises what both ways raise."""
    return inside.draw(source, options) if inside else draw(source, options)
