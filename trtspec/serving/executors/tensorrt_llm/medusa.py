"""Medusa's heads inside an engine, which NVIDIA's runtime configures by their tree."""

from __future__ import annotations

from typing import Any, ClassVar

from trtspec.serving.executors.limits import MEDUSA
from trtspec.serving.executors.tensorrt_llm.choices import ChoicesTree


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
