"""Plans the checkpoint of a target with Medusa's heads in it: TensorRT-LLM's `MedusaForCausalLM`.

Names and shapes are those of NVIDIA's converter (`examples/medusa/convert_checkpoint.py`, and `weight.py` and
`model.py` of `tensorrt_llm/models/medusa`). The target's own tensors are as in any checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from trtspec.base.errors import ModelError
from trtspec.base.findings import errors
from trtspec.checkpoint.blueprint import Blueprint, draw
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.checkpoint.placement import place
from trtspec.models.families.family import FamilyTensor, Split, TensorPart
from trtspec.models.heads.check import check_head
from trtspec.models.heads.choices import Path
from trtspec.models.heads.head import HeadDescription
from trtspec.models.heads.medusa import MedusaDescription
from trtspec.models.heads.reading import head_tensors
from trtspec.models.source import Source

ARCHITECTURE = "MedusaForCausalLM"
_FAMILIES = ("llama", "mistral", "qwen2")
_HEADS = "*medusa_heads*"
"""What stays as it is in an FP8 target (`combine_medusa_weight` of quantize_by_modelopt.py)."""


@dataclass(frozen=True, slots=True)
class MedusaCheckpoint:
    """Heads, and the paths of the tree that they propose in each step.

    A head that no path uses is left out: the runtime would ask it for no tokens at all.
    """

    head: MedusaDescription
    choices: tuple[Path, ...]

    @property
    def count(self) -> int:
        """Returns the number of heads that the tree uses."""
        return max(map(len, self.choices))


def draw_whole(source: Source, options: ConvertOptions, medusa: MedusaCheckpoint | None) -> Blueprint:
    """Plans the checkpoint of a model, with its heads if it has any; raises what both ways raise."""
    return draw(source, options) if medusa is None else draw_medusa(source, medusa, options)


def draw_medusa(source: Source, medusa: MedusaCheckpoint, options: ConvertOptions) -> Blueprint:
    """Plans the checkpoint of a target and its heads.

    Raises ModelError for heads or a target that the engine cannot have, and what `draw` raises.
    """
    head = medusa.head
    check_medusa(source, head)
    blueprint, mapping = draw(source, options), options.mapping
    weights = tuple(weights_of(medusa))
    size = source.num_hidden_layers, source.head_size
    ranks = tuple(
        (*placed, *place(weights, *size, mapping, rank)) for rank, placed in enumerate(blueprint.ranks)
    )
    config = {
        **blueprint.config,
        "architecture": ARCHITECTURE,
        # By which `MedusaForCausalLm` chooses its base class.
        "model_type": source.model_type,
        "max_draft_len": len(medusa.choices),
        "num_medusa_heads": medusa.count,
        "num_medusa_layers": head.num_layers,
    }
    if options.fp8:
        quantization = blueprint.config["quantization"]
        left_out = [*quantization["exclude_modules"], _HEADS]
        config["quantization"] = {**quantization, "exclude_modules": left_out}
    return replace(
        blueprint,
        config=config,
        weights=(*blueprint.weights, *weights),
        ranks=ranks,
        tensors={**blueprint.tensors, **head_tensors(head)},
    )


def weights_of(medusa: MedusaCheckpoint) -> Iterator[FamilyTensor]:
    """Yields what the checkpoint has beside the target's weights."""
    head = medusa.head
    hidden, vocab = head.hidden_size, head.vocab_size
    for number in range(medusa.count):
        ours = f"medusa_heads.{number}"
        for layer in range(head.num_layers):
            linear, theirs = f"{ours}.medusa_layers.{layer}.linear", f"{number}.{layer}.linear"
            yield FamilyTensor(
                f"{linear}.weight", (TensorPart(f"{theirs}.weight", (hidden, hidden), Split.ROWS),)
            )
            yield FamilyTensor(f"{linear}.bias", (TensorPart(f"{theirs}.bias", (hidden,), Split.ROWS),))
        logits = TensorPart(f"{number}.{head.num_layers}.weight", (vocab, hidden), Split.VOCAB)
        yield FamilyTensor(f"{ours}.lm_head.weight", (logits,))


def check_medusa(source: Source, head: HeadDescription) -> MedusaDescription:
    """Returns the heads; raises ModelError for those, or a target, that the engine cannot have."""
    if not isinstance(head, MedusaDescription):
        raise ModelError(head.folder, f"is a head of {head.method}, not Medusa's", "name Medusa's heads")
    for found in errors(check_head(head, source)):
        raise ModelError(head.folder, f"{found.subject}: {found.problem}", found.repair)
    if source.model_type not in _FAMILIES:
        problem = f"TensorRT-LLM has Medusa for {', '.join(_FAMILIES)}, not for {source.model_type}"
        raise ModelError(source.folder / "config.json", problem, "take another method")
    return head
