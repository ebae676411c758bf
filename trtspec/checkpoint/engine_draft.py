"""Defines a draft in its target's engine, which is part of the target's checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from trtspec.base.findings import Finding
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.checkpoint.convert_options import Mapping as RankMapping
from trtspec.methods.method import Method
from trtspec.models.families.family import FamilyTensor
from trtspec.models.heads.head import HeadDescription
from trtspec.models.source import Source, Tensor


class EngineDraft(ABC):
    """A draft in its target's engine; the backend lists the methods for which it builds one."""

    mode: ClassVar[str]
    """TensorRT-LLM's speculative_decoding_mode of the engine."""
    reduce_fusion: ClassVar[bool] = True
    """False if `trtllm-build` switches its option `reduce_fusion` off for the engine."""
    report: ClassVar[str] = ""
    """The open report of TensorRT-LLM that makes such engines experimental; empty without one."""
    most_tried: ClassVar[int | None] = None
    """The largest batch that nothing reports trouble with; None if any is as good."""

    @classmethod
    @abstractmethod
    def usual(cls, source: Source, method: Method, head: HeadDescription | None) -> EngineDraft:
        """Returns the draft of a recipe's method with its default size, with its head if it has one.

        Raises ModelError for a head, or a target, that it cannot be in.
        """

    @abstractmethod
    def of_size(self, size: int) -> EngineDraft:
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

    def misfit(self, mapping: RankMapping) -> Finding | None:
        """Returns why it cannot be split over the target's ranks; None if it can be, as the target is."""
        return None

    @property
    @abstractmethod
    def title(self) -> str:
        """The name for people."""

    @abstractmethod
    def digested(self) -> dict[str, Any]:
        """Returns what a checkpoint depends on beside the files of target and head."""

    def config(
        self, source: Source, options: ConvertOptions, of_target: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Returns the `config.json` of the checkpoint with the draft in it, from that of the target alone."""
        return of_target

    def weights(self) -> Iterator[FamilyTensor]:
        """Yields what the checkpoint has beside the target's weights."""
        yield from ()

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The Hugging Face tensors of these weights, by name."""
        return {}

    @abstractmethod
    def parameters(self, *, of_engine: bool) -> dict[str, str]:
        """Returns the parameters of the Triton model that loads the engine.

        That is the engine's own model, or else the one in front, which has the engines in its process.
        """
