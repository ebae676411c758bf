"""Defines what NVIDIA's runtime is told of a draft that an engine has inside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar


class RuntimeDraft(ABC):
    """A draft that the engine makes by itself; `str()` is what a refusal quotes of it."""

    mode: ClassVar[int]
    """The `SpeculativeDecodingMode` of an engine that has it inside."""
    key: ClassVar[str]
    """The first of its parameters in `config.pbtxt`."""

    @property
    @abstractmethod
    def num_drafted(self) -> int:
        """The number of tokens of a step, which must be the engine's `max_draft_len`."""

    @abstractmethod
    def parameters(self) -> dict[str, str]:
        """Returns its parameters of `config.pbtxt`, which are NVIDIA's."""

    @abstractmethod
    def decoding(self, trtllm: Any) -> Any:
        """Returns the `DecodingConfig`; `trtllm` is `tensorrt_llm.bindings.executor`."""
