"""Lookahead decoding in an engine of TensorRT-LLM: the target's own checkpoint, and three sizes.

Its releases 1.0 to 1.2 have it, for GPUs from Ampere on (`examples/lookahead/README.md`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from trtspec.base.errors import ModelError
from trtspec.checkpoint.engine_draft import EngineDraft
from trtspec.methods.method import Method
from trtspec.methods.table import LookaheadMethod
from trtspec.models.families import family_of
from trtspec.models.heads.head import HeadDescription
from trtspec.models.source import Source
from trtspec.serving.executors.tensorrt_llm.runtime_draft import LookaheadSizes

_DECODING = "lookahead"
"""Triton's `decoding_mode`."""


@dataclass(frozen=True, slots=True)
class LookaheadEngineDraft(EngineDraft):
    """The sizes of the window, of its n-grams, and of the set that is verified."""

    mode: ClassVar[str] = "lookahead_decoding"
    title: ClassVar[str] = "lookahead"
    count: ClassVar[int] = 0
    report: ClassVar[str] = "issue 5451, of a crash as accepted tokens move in the KV cache"
    reason: ClassVar[str] = "the tokens of the window and of the n-grams that are verified"

    sizes: LookaheadSizes

    @classmethod
    def usual(cls, source: Source, method: Method, head: HeadDescription | None) -> LookaheadEngineDraft:
        assert isinstance(method, LookaheadMethod)
        if family_of(source).alternates:
            # `TrtGptModelInflightBatching` rewinds no KV cache whose windows differ by layer.
            problem = f"TensorRT-LLM has no lookahead for {source.model_type}: its layers differ in windows"
            raise ModelError(source.folder / "config.json", problem, "take another method")
        return cls(LookaheadSizes(method.window_size, method.ngram_size, method.verification_set_size))

    def of_size(self, size: int) -> LookaheadEngineDraft:
        if size != self.num_drafted:
            problem = f"follows from window_size, ngram_size and verification_set_size: {self.num_drafted}"
            raise ValueError(problem, "remove this line")
        return self

    @property
    def num_drafted(self) -> int:
        return self.sizes.num_drafted

    def digested(self) -> dict[str, Any]:
        return {}

    def parameters(self, *, of_engine: bool) -> dict[str, str]:
        sizes = self.sizes.parameters()
        return {"decoding_mode": _DECODING, **sizes} if of_engine else sizes
