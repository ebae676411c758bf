"""Medusa's heads inside an engine, as NVIDIA's runtime is told of them: the tree that they propose."""

from __future__ import annotations

from typing import Any, ClassVar

from trtspec.serving.executors.limits import MEDUSA
from trtspec.serving.executors.tensorrt_llm.choices import ChoicesTree


class MedusaTree(ChoicesTree):
    """The tree of Medusa's heads.

    The runtime would take one of 63 nodes where it is told of none, and fill a smaller one up with rubbish
    (`MedusaModule`, and `initTensorsFromChoices` of runtime/utils/speculativeChoicesUtils.cpp).
    """

    mode: ClassVar[int] = MEDUSA
    key: ClassVar[str] = "medusa_choices"

    def decoding(self, trtllm: Any) -> Any:
        mode = trtllm.DecodingMode.Medusa()
        return trtllm.DecodingConfig(decoding_mode=mode, medusa_choices=self.paths)
