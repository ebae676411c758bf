"""EAGLE's head inside an engine, as NVIDIA's runtime is told of it: the tree that it proposes."""

from __future__ import annotations

from typing import Any, ClassVar

from trtspec.serving.executors.limits import EAGLE
from trtspec.serving.executors.tensorrt_llm.choices import ChoicesTree


class EagleTree(ChoicesTree):
    """The tree of EAGLE-1, which is the same in every step.

    The runtime would take one of 63 nodes where it is told of none. It accepts tokens that are the target's
    own, unless a threshold says how unlikely others may be (`EagleConfig` of `executor.h`): that would be
    another text.
    """

    mode: ClassVar[int] = EAGLE
    key: ClassVar[str] = "eagle_choices"

    def decoding(self, trtllm: Any) -> Any:
        tree = trtllm.EagleConfig(eagle_choices=self.paths)
        return trtllm.DecodingConfig(decoding_mode=trtllm.DecodingMode.Eagle(), eagle_config=tree)
