"""Medusa's heads inside an engine, as NVIDIA's runtime is told of them: the tree that they propose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from trtspec.serving.executors.limits import MEDUSA
from trtspec.serving.executors.tensorrt_llm.choices import Choices, as_parameter
from trtspec.serving.executors.tensorrt_llm.runtime_draft import RuntimeDraft


@dataclass(frozen=True, slots=True)
class MedusaTree(RuntimeDraft):
    """The paths of Medusa's tree.

    The runtime would take a tree of 63 nodes where it is told of none, and fill a smaller one up with rubbish
    (`MedusaModule`, and `initTensorsFromChoices` of runtime/utils/speculativeChoicesUtils.cpp).
    """

    mode: ClassVar[int] = MEDUSA
    key: ClassVar[str] = "medusa_choices"

    choices: Choices

    @property
    def num_drafted(self) -> int:
        return len(self.choices)

    def __str__(self) -> str:
        return as_parameter(self.choices)

    def parameters(self) -> dict[str, str]:
        return {self.key: str(self)}

    def decoding(self, trtllm: Any) -> Any:
        choices = [list(path) for path in self.choices]
        return trtllm.DecodingConfig(decoding_mode=trtllm.DecodingMode.Medusa(), medusa_choices=choices)
