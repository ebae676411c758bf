"""EAGLE's head inside an engine, as NVIDIA's runtime is told of it: the tree that it proposes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from trtspec.serving.executors.limits import EAGLE
from trtspec.serving.executors.tensorrt_llm.choices import Choices, as_parameter
from trtspec.serving.executors.tensorrt_llm.runtime_draft import RuntimeDraft


@dataclass(frozen=True, slots=True)
class EagleTree(RuntimeDraft):
    """The paths of the tree of EAGLE-1, which is the same in every step.

    The runtime would take a tree of 63 nodes where it is told of none. It accepts tokens that are the
    target's own, unless a threshold says how unlikely others may be (`EagleConfig` of `executor.h`): that
    would be another text.
    """

    mode: ClassVar[int] = EAGLE
    key: ClassVar[str] = "eagle_choices"

    choices: Choices

    @property
    def num_drafted(self) -> int:
        return len(self.choices)

    def __str__(self) -> str:
        return as_parameter(self.choices)

    def parameters(self) -> dict[str, str]:
        return {self.key: str(self)}

    def decoding(self, trtllm: Any) -> Any:
        tree = trtllm.EagleConfig(eagle_choices=[list(path) for path in self.choices])
        return trtllm.DecodingConfig(decoding_mode=trtllm.DecodingMode.Eagle(), eagle_config=tree)
