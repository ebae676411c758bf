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
from pathlib import Path
from typing import Any, ClassVar

from trtspec.base.errors import ModelError
from trtspec.models.heads.head import HeadDescription
from trtspec.models.heads.weights import check_count, check_shapes, read_weights
from trtspec.models.hf_config import HfConfig

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


def recognises(folder: Path, config: Mapping[str, Any]) -> bool:
    return "medusa_num_heads" in config


def read(folder: Path, config: HfConfig) -> MedusaDescription:
    """Reads the heads; raises ModelError for heads without output matrices of their own."""
    count, blocks, found = (
        config.size("medusa_num_heads"),
        config.size("medusa_num_layers", 1),
        read_weights(folder, WEIGHTS),
    )
    if (logits := found.get(f"0.{blocks}.weight")) is None:
        problem = f"0.{blocks}.weight: is missing: the heads use their target's lm_head (Medusa's version 2)"
        repair = (
            f"store the target's lm_head.weight as H.{blocks}.weight of each head H, as TensorRT-LLM demands"
        )
        raise ModelError(folder, problem, repair)
    vocab_size, hidden = logits.shape if len(logits.shape) == 2 else (0, 0)
    shapes: dict[str, tuple[int, ...]] = {}
    check_count(folder, "medusa_num_heads times medusa_num_layers", count * blocks, found)
    for head in range(count):
        for block in range(blocks):
            shapes[f"{head}.{block}.linear.weight"] = (hidden, hidden)
            shapes[f"{head}.{block}.linear.bias"] = (hidden,)
        shapes[f"{head}.{blocks}.weight"] = (vocab_size, hidden)
    check_shapes(folder, found, shapes)
    return MedusaDescription(
        folder=folder,
        form="medusa",
        hidden_size=hidden,
        vocab_size=vocab_size,
        draft_vocab_size=vocab_size,
        tensors=found,
        count=count,
        num_layers=blocks,
        verifier=config.get("base_model_name_or_path", str, None),
        unsaid={
            key: value
            for key, value in vllm_keys(hidden, vocab_size).items()
            if config.content.get(key) != value
        },
    )
