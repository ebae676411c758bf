"""The format of Medusa's own repository (https://github.com/FasterDecoding/Medusa, arXiv 2401.10774).

`config.json` names the target and the number of heads, `medusa_lm_head.safetensors` has their weights.
`H.L.linear` is the residual block L of head H, which reads the output of the target's last norm. The number
after the last block is the head's output matrix. Head 0 proposes the token after the next one. TensorRT-LLM
reads exactly this (`tensorrt_llm/models/medusa/weight.py`). vLLM 0.32.0 reads the same tensors and a
`config.json` that says more (`vllm_keys`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trtspec.base.errors import ModelError
from trtspec.models.heads.head import HeadDescription, HeadFormat
from trtspec.models.source import HfConfig, Tensor

WEIGHTS = "medusa_lm_head.safetensors"
TARGET_ARCHITECTURE = "MedusaForCausalLM"
"""TensorRT-LLM's name of a target with such heads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaDescription(HeadDescription):
    """Medusa's heads, each of which proposes one token."""

    method: ClassVar[str] = "medusa"
    architecture: ClassVar[str] = "MedusaModel"

    count: int
    """The number of heads, and so of tokens that they propose."""
    num_layers: int
    """The number of residual blocks that each head has."""

    @property
    def num_parts(self) -> tuple[str, int]:
        return "medusa_num_heads times medusa_num_layers", self.count * self.num_layers

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        shapes, hidden = dict[str, tuple[int, ...]](), self.hidden_size
        for head in range(self.count):
            for block in range(self.num_layers):
                shapes[f"{head}.{block}.linear.weight"] = (hidden, hidden)
                shapes[f"{head}.{block}.linear.bias"] = (hidden,)
            shapes[f"{head}.{self.num_layers}.weight"] = (self.vocab_size, hidden)
        return shapes

    @property
    def longest(self) -> int:
        return self.count

    def facts(self) -> dict[str, Any]:
        return {"num_heads": self.count, "num_layers": self.num_layers}

    def engine_draft(self, num_layers: int) -> dict[str, Any]:
        return {"count": self.count, "num_layers": self.num_layers}


def vllm_keys(hidden_size: int, vocab_size: int) -> dict[str, Any]:
    """Returns the keys of `config.json` that vLLM's `MedusaConfig` reads and Medusa's own repository does not
    write.

    Without them the heads silently get a width of 4,096 and lose the biases of their blocks (vLLM 0.32.0,
    `transformers_utils/configs/medusa.py` and `model_executor/models/medusa.py`).
    """
    return {
        "architectures": [MedusaDescription.architecture],
        "model_type": "medusa",
        "hidden_size": hidden_size,
        "vocab_size": vocab_size,
        "medusa_fc_bias": True,
    }


class MedusaFormat(HeadFormat):
    form = "medusa"
    weights = WEIGHTS

    def recognises(self, config: HfConfig) -> bool:
        return "medusa_num_heads" in config.content

    def describe(self, config: HfConfig, tensors: Mapping[str, Tensor]) -> HeadDescription:
        """Returns the heads; raises ModelError for heads without output matrices of their own."""
        count, blocks = config.size("medusa_num_heads"), config.size("medusa_num_layers", 1)
        if (logits := tensors.get(f"0.{blocks}.weight")) is None:
            problem = (
                f"0.{blocks}.weight: is missing: the heads use their target's lm_head (Medusa's version 2)"
            )
            repair = (
                f"store the target's lm_head.weight as H.{blocks}.weight of each head H, as TensorRT-LLM "
                "demands"
            )
            raise ModelError(config.folder, problem, repair)
        vocab_size, hidden = logits.shape if len(logits.shape) == 2 else (0, 0)
        needed = vllm_keys(hidden, vocab_size)
        return MedusaDescription(
            folder=config.folder,
            form=self.form,
            hidden_size=hidden,
            vocab_size=vocab_size,
            draft_vocab_size=vocab_size,
            tensors=tensors,
            count=count,
            num_layers=blocks,
            verifier=config.get("base_model_name_or_path", str, None),
            unsaid={key: value for key, value in needed.items() if config.content.get(key) != value},
        )
