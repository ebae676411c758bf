"""EAGLE's head inside an engine, which NVIDIA's runtime configures by its tree."""

from __future__ import annotations

from typing import Any, ClassVar

from trtspec.serving.executors.limits import EAGLE
from trtspec.serving.executors.tensorrt_llm.choices import ChoicesTree


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
