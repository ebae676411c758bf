"""Defines the configuration of a draft inside an engine, for NVIDIA's runtime."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar


class RuntimeDraft(ABC):
    """A draft inside an engine; error messages quote its `str()`."""

    mode: ClassVar[int]
    """The `SpeculativeDecodingMode` of the engine."""
    key: ClassVar[str]
    """The name of its first parameter in `config.pbtxt`."""

    @property
    @abstractmethod
    def num_drafted(self) -> int:
        """The number of draft tokens of a step, which must be the engine's `max_draft_len`."""

    @abstractmethod
    def parameters(self) -> dict[str, str]:
        """Returns its parameters in `config.pbtxt`, with NVIDIA's names."""

    @abstractmethod
    def decoding(self, trtllm: Any) -> Any:
        """Returns the `DecodingConfig`; `trtllm` is `tensorrt_llm.bindings.executor`."""
