"""The model families that trtspec converts: a table, and one small module each."""

from __future__ import annotations

from trtspec.errors import ModelError
from trtspec.models.families import llama, mistral, phi3, qwen2, qwen3
from trtspec.models.families.family import Family
from trtspec.models.source import Source

FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": llama.FAMILY,
    "MistralForCausalLM": mistral.FAMILY,
    "Phi3ForCausalLM": phi3.FAMILY,
    "Qwen2ForCausalLM": qwen2.FAMILY,
    "Qwen3ForCausalLM": qwen3.FAMILY,
}


def family_of(source: Source) -> Family:
    """The family of a model; raises ModelError for a model that trtspec does not convert."""
    family = FAMILIES.get(source.architecture)
    if family is None:
        known = ", ".join(FAMILIES)
        raise ModelError(
            source.folder, f"architecture {source.architecture} is not supported; known: {known}"
        )
    if source.model_type != family.name:
        problem = f"architectures says {source.architecture}, but model_type is {source.model_type}"
        raise ModelError(source.folder / "config.json", problem, f"for this architecture it is {family.name}")
    family.check(source)
    return family
