"""Holds the limits that an engine is built for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from trtspec.recipe.build_options import Value


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """The sizes of an engine, in tokens except `max_batch_size`."""

    max_batch_size: int
    """In requests."""
    max_input_len: int
    max_seq_len: int
    """The longest prompt and answer. The builders add `max_draft_len` to it."""
    max_num_tokens: int
    max_draft_len: int = 0
    """0 for an engine that verifies no drafts."""
    extra: Mapping[str, Value] = field(default_factory=dict)
    """Further options of `trtllm-build`, named and valued as in a recipe (`trtspec/recipe/build_options.py`).
    """

    @property
    def num_verified_tokens(self) -> int:
        """The tokens that verify a draft of every request: the draft's, and one more for each request."""
        return self.max_batch_size * (self.max_draft_len + 1)


class Default(NamedTuple):
    """One option and its default value."""

    option: str
    value: Value
    reason: str
    """The reason for the value, in one line."""


@dataclass(frozen=True, slots=True)
class EngineKind:
    """The facts that the defaults of an engine depend on."""

    architecture: str
    fp8_weights: bool
    fp8_kv_cache: bool
    sm: int
    """The compute capability times ten."""
    tensor: int = 1
    """The size of tensor parallelism."""
    pipeline: int = 1
    """The size of pipeline parallelism."""
    reduce_fusion: bool = True
    """False if a draft inside the engine rules out the option `reduce_fusion`."""
    rows: int = 1
    """The most rows of a round: one for each token of each request's draft, and one more a request."""
