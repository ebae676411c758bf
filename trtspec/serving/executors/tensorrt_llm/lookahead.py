"""Lookahead decoding inside an engine, which NVIDIA's runtime configures by three sizes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from trtspec.serving.executors.limits import LOOKAHEAD
from trtspec.serving.executors.tensorrt_llm.runtime_draft import RuntimeDraft


@dataclass(frozen=True, slots=True)
class LookaheadSizes(RuntimeDraft):
    """The sizes of a server, for requests that name none (`createNewDecoderRequests.cpp`).

    The runtime accepts sizes with fewer tokens than the engine was built for, though NVIDIA's
    `examples/lookahead/README.md` asks for the same number.
    """

    mode: ClassVar[int] = LOOKAHEAD
    key: ClassVar[str] = "lookahead_window_size"

    window_size: int
    ngram_size: int
    verification_set_size: int

    @property
    def num_drafted(self) -> int:
        """The third number of `calculateSpeculativeResource` (`executor/decodingConfig.cpp`).

        The window's first line has n-2 tokens, each other line and each n-gram to verify n-1.
        """
        lines = self.window_size - 1 + self.verification_set_size
        return self.ngram_size - 2 + lines * (self.ngram_size - 1)

    def __str__(self) -> str:
        return f"{self.window_size}, {self.ngram_size}, {self.verification_set_size}"

    def parameters(self) -> dict[str, str]:
        return {f"lookahead_{name}": str(size) for name, size in asdict(self).items()}

    def decoding(self, trtllm: Any) -> Any:
        sizes = trtllm.LookaheadDecodingConfig(
            max_window_size=self.window_size,
            max_ngram_size=self.ngram_size,
            max_verification_set_size=self.verification_set_size,
        )
        mode = trtllm.DecodingMode.Lookahead()
        return trtllm.DecodingConfig(decoding_mode=mode, lookahead_decoding_config=sizes)
