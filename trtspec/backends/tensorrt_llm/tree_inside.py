"""Defines a draft inside an engine of TensorRT-LLM whose heads propose a tree: Medusa's, and EAGLE's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from trtspec.checkpoint.blueprint import Blueprint
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.checkpoint.inside import DraftInside
from trtspec.checkpoint.placement import place
from trtspec.models.heads.head import HeadDescription
from trtspec.models.source import Source
from trtspec.serving.executors.tensorrt_llm.choices import Choices, ChoicesTree


@dataclass(frozen=True, slots=True)
class TreeInside(DraftInside):
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

    def _beside(
        self, target: Blueprint, source: Source, options: ConvertOptions, config: dict[str, Any]
    ) -> Blueprint:
        """Returns the target's checkpoint with `config`, and with the head's weights beside its own."""
        weights, size = tuple(self.weights()), (source.num_hidden_layers, source.head_size)
        ranks = tuple(
            (*placed, *place(weights, *size, options.mapping, rank))
            for rank, placed in enumerate(target.ranks)
        )
        return replace(
            target,
            config=config,
            weights=(*target.weights, *weights),
            ranks=ranks,
            tensors={**target.tensors, **self.head.tensors},
        )
