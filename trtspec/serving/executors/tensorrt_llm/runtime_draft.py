"""Drafts inside an engine, as NVIDIA's runtime configures them: trees of Medusa and EAGLE-1, lookahead."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from trtspec.serving.executors.validation import EAGLE, LOOKAHEAD, MEDUSA


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


Choices = tuple[tuple[int, ...], ...]
_PATH = r"\{\d{1,4}(?:, ?\d{1,4})*\}"
_TREE = re.compile(rf"{_PATH}(?:, ?{_PATH})*")


@dataclass(frozen=True, slots=True)
class ChoicesTree(RuntimeDraft):
    """A tree of draft tokens from heads inside an engine, with fixed paths.

    A path has a rank for each head that it uses: (0, 2) is the likeliest token of the first head, and then
    the third likeliest of the second. A tree has the prefixes of its paths too.
    """

    choices: Choices

    @property
    def num_drafted(self) -> int:
        return len(self.choices)

    @property
    def paths(self) -> list[list[int]]:
        """The paths in the form of the bindings."""
        return [list(path) for path in self.choices]

    def __str__(self) -> str:
        return as_parameter(self.choices)

    def parameters(self) -> dict[str, str]:
        return {self.key: str(self)}


def as_parameter(choices: Iterable[Iterable[int]]) -> str:
    """Returns the paths in the form of the C++ backend (`csvStrToVecVecInt` of its `src/utils.cc`)."""
    return ", ".join(f"{{{', '.join(map(str, path))}}}" for path in choices)


def read_choices(text: str) -> Choices:
    """Returns the paths in such a text; raises `ValueError` for another."""
    if not _TREE.fullmatch(text):
        raise ValueError(text)
    return tuple(tuple(map(int, path.split(","))) for path in re.findall(r"\{(.*?)\}", text))


class EagleTree(ChoicesTree):
    """The tree of EAGLE-1, which is the same in every step.

    Without it the runtime would take one of 63 nodes. Without a threshold (`EagleConfig` of `executor.h`) it
    accepts only the target's own tokens; with one it would accept others too.
    """

    mode: ClassVar[int] = EAGLE
    key: ClassVar[str] = "eagle_choices"

    def decoding(self, trtllm: Any) -> Any:
        tree = trtllm.EagleConfig(eagle_choices=self.paths)
        return trtllm.DecodingConfig(decoding_mode=trtllm.DecodingMode.Eagle(), eagle_config=tree)


class MedusaTree(ChoicesTree):
    """The tree of Medusa's heads.

    Without it the runtime would take one of 63 nodes. It would pad a smaller tree with garbage
    (`MedusaModule`, and `initTensorsFromChoices` of runtime/utils/speculativeChoicesUtils.cpp).
    """

    mode: ClassVar[int] = MEDUSA
    key: ClassVar[str] = "medusa_choices"

    def decoding(self, trtllm: Any) -> Any:
        mode = trtllm.DecodingMode.Medusa()
        return trtllm.DecodingConfig(decoding_mode=mode, medusa_choices=self.paths)


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
