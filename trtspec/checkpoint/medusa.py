"""Plans the checkpoint of a target with Medusa's heads in it: TensorRT-LLM's `MedusaForCausalLM`.

Names and shapes are those of NVIDIA's converter (`examples/medusa/convert_checkpoint.py`, and `weight.py` and
`model.py` of `tensorrt_llm/models/medusa`). The target's own tensors are as in any checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from trtspec.checkpoint.blueprint import Blueprint, draw
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.checkpoint.placement import place
from trtspec.errors import ModelError
from trtspec.findings import errors
from trtspec.models.families.family import Part, Split, Weight
from trtspec.models.heads.check import check_head
from trtspec.models.heads.head import Head
from trtspec.models.heads.reading import head_tensors
from trtspec.models.source import Source

ARCHITECTURE = "MedusaForCausalLM"
_FAMILIES = ("llama", "mistral", "qwen2")


def draw_medusa(source: Source, head: Head, options: ConvertOptions, max_draft_len: int) -> Blueprint:
    """Plans the checkpoint of a target and its heads, of whose tokens `max_draft_len` are verified at once.

    Raises ModelError for heads or a target that the engine cannot have, and what `draw` raises.
    """
    _check(source, head, options)
    blueprint, mapping = draw(source, options), options.mapping
    weights = tuple(_weights(head))
    size = source.num_hidden_layers, source.head_size
    ranks = tuple(
        (*placed, *place(weights, *size, mapping, rank)) for rank, placed in enumerate(blueprint.ranks)
    )
    config = {
        **blueprint.config,
        "architecture": ARCHITECTURE,
        # By which `MedusaForCausalLm` chooses its base class; without it that is LLaMA's.
        **({"model_type": source.model_type} if "qwen" in source.model_type else {}),
        "max_draft_len": max_draft_len,
        "num_medusa_heads": head.count,
        "num_medusa_layers": head.num_layers,
    }
    return replace(
        blueprint,
        config=config,
        weights=(*blueprint.weights, *weights),
        ranks=ranks,
        tensors={**blueprint.tensors, **head_tensors(head)},
    )


def _weights(head: Head) -> Iterator[Weight]:
    hidden, vocab = head.hidden_size, head.vocab_size
    for number in range(head.count):
        ours = f"medusa_heads.{number}"
        for layer in range(head.num_layers):
            linear, theirs = f"{ours}.medusa_layers.{layer}.linear", f"{number}.{layer}.linear"
            yield Weight(f"{linear}.weight", (Part(f"{theirs}.weight", (hidden, hidden), Split.ROWS),))
            yield Weight(f"{linear}.bias", (Part(f"{theirs}.bias", (hidden,), Split.ROWS),))
        logits = Part(f"{number}.{head.num_layers}.weight", (vocab, hidden), Split.VOCAB)
        yield Weight(f"{ours}.lm_head.weight", (logits,))


def _check(source: Source, head: Head, options: ConvertOptions) -> None:
    if head.method != "medusa":
        raise ModelError(head.folder, f"is a head of {head.method}, not Medusa's", "name Medusa's heads")
    for found in errors(check_head(head, source)):
        raise ModelError(head.folder, f"{found.subject}: {found.problem}", found.repair)
    if source.model_type not in _FAMILIES:
        problem = f"TensorRT-LLM has Medusa for {', '.join(_FAMILIES)}, not for {source.model_type}"
        raise ModelError(source.folder / "config.json", problem, "take another method")
    if options.fp8:
        problem = "is to be FP8, which NVIDIA's converter has for Medusa only where the heads are FP8 too"
        raise ModelError(source.folder, problem, "write quantization: {weights: none}")
    if options.mapping.pp_size > 1:
        problem = "is to have pipeline ranks, which TensorRT-LLM's Medusa has not"
        raise ModelError(source.folder, problem, "write parallel: {tensor: N} alone")
