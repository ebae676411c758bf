"""Medusa's heads in an engine of TensorRT-LLM: its `MedusaForCausalLM`, and the tree that they propose.

Names and shapes are those of NVIDIA's converter (`examples/medusa/convert_checkpoint.py`, and `weight.py` and
`model.py` of `tensorrt_llm/models/medusa`). The target's own tensors are as in any checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trtspec.backends.tensorrt_llm.tree import TreeEngineDraft, choices, fitted
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.methods.method import Method
from trtspec.models.families.family import FamilyTensor, Split, TensorPart
from trtspec.models.heads.head import HeadDescription
from trtspec.models.heads.medusa import TARGET_ARCHITECTURE, MedusaDescription
from trtspec.models.source import Source
from trtspec.serving.executors.tensorrt_llm.runtime_draft import MedusaTree

_FAMILIES = ("llama", "mistral", "qwen2")
_HEADS = "*medusa_heads*"
"""What stays as it is in an FP8 target (`combine_medusa_weight` of quantize_by_modelopt.py)."""


@dataclass(frozen=True, slots=True)
class MedusaEngineDraft(TreeEngineDraft):
    """Medusa's heads, and the paths of the tree that they propose in each step.

    A head that no path uses is left out: the runtime would ask it for no tokens at all.
    """

    mode: ClassVar[str] = "medusa"
    runtime: ClassVar[type[MedusaTree]] = MedusaTree

    head: MedusaDescription

    @classmethod
    def usual(cls, source: Source, method: Method, head: HeadDescription | None) -> MedusaEngineDraft:
        heads = fitted(source, head, MedusaDescription, "Medusa", _FAMILIES)
        return cls(heads, tuple(choices(heads.count)))

    def of_size(self, size: int) -> MedusaEngineDraft:
        tree = choices(self.head.count, size)
        if len(tree) < size:
            problem = f"{size} is more than the nodes of {self.head.count} head's tree: {len(tree)}"
            raise ValueError(problem, f"at most {len(tree)}")
        return MedusaEngineDraft(self.head, tuple(tree))

    @property
    def reason(self) -> str:
        return "the tree's nodes, as many as Medusa's authors use" if self.head.count > 1 else "all paths"

    @property
    def title(self) -> str:
        return f"{self.count} heads of Medusa"

    def config(
        self, source: Source, options: ConvertOptions, of_target: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        config = {
            **of_target,
            "architecture": TARGET_ARCHITECTURE,
            # By which `MedusaForCausalLm` chooses its base class.
            "model_type": source.model_type,
            "max_draft_len": len(self.choices),
            "num_medusa_heads": self.count,
            "num_medusa_layers": self.head.num_layers,
        }
        if options.fp8:
            quantization = of_target["quantization"]
            left_out = [*quantization["exclude_modules"], _HEADS]
            config["quantization"] = {**quantization, "exclude_modules": left_out}
        return config

    def weights(self) -> Iterator[FamilyTensor]:
        head = self.head
        hidden, vocab = head.hidden_size, head.vocab_size
        for number in range(self.count):
            ours = f"medusa_heads.{number}"
            for layer in range(head.num_layers):
                linear, theirs = f"{ours}.medusa_layers.{layer}.linear", f"{number}.{layer}.linear"
                yield FamilyTensor(
                    f"{linear}.weight", (TensorPart(f"{theirs}.weight", (hidden, hidden), Split.ROWS),)
                )
                yield FamilyTensor(f"{linear}.bias", (TensorPart(f"{theirs}.bias", (hidden,), Split.ROWS),))
            logits = TensorPart(f"{number}.{head.num_layers}.weight", (vocab, hidden), Split.VOCAB)
            yield FamilyTensor(f"{ours}.lm_head.weight", (logits,))
