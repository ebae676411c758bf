"""The model families that trtspec converts: a table, and a module for each of TensorRT-LLM's classes."""

from __future__ import annotations

from trtspec.base.errors import ModelError
from trtspec.models.families.family import ModelFamily
from trtspec.models.families.gemma import GEMMA2, GEMMA3
from trtspec.models.families.llama import GRANITE, LLAMA, MISTRAL, MIXTRAL
from trtspec.models.families.phi3 import PHI3
from trtspec.models.families.qwen import QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE
from trtspec.models.source import SAME_REVISION, SERVED, Source, is_multimodal, refusal

FAMILIES: dict[str, ModelFamily] = {
    "Gemma2ForCausalLM": GEMMA2,
    "Gemma3ForCausalLM": GEMMA3,
    "GraniteForCausalLM": GRANITE,
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": MISTRAL,
    "MixtralForCausalLM": MIXTRAL,
    "Phi3ForCausalLM": PHI3,
    "Qwen2ForCausalLM": QWEN2,
    "Qwen2MoeForCausalLM": QWEN2_MOE,
    "Qwen3ForCausalLM": QWEN3,
    "Qwen3MoeForCausalLM": QWEN3_MOE,
}


def family_of(source: Source) -> ModelFamily:
    """The family of a model; raises ModelError for a model that trtspec does not convert."""
    if family := FAMILIES.get(source.architecture):
        _check(source, family)
        return family
    if is_multimodal(source.config):
        raise refusal(source.config)
    problem = f"architecture {source.architecture} is not supported; known: {', '.join(FAMILIES)}"
    raise ModelError(source.folder, problem, SERVED)


def _check(source: Source, family: ModelFamily) -> None:
    if source.foreign is not None:
        raise source.foreign
    experts, file = source.experts, source.config.file
    if source.model_type != family.name:
        problem = f"architectures has {source.architecture}, but model_type is {source.model_type}"
        repair = f"for this architecture model_type must be {family.name}"
        raise ModelError(source.folder / "config.json", problem, repair)
    if (experts is not None) != family.experts:
        problem = "has no experts" if family.experts else "has experts"
        raise ModelError(file, f"{problem}, unlike {source.architecture}")
    tensors = len(source.tensors)
    if experts and experts.count * source.num_hidden_layers > tensors:
        problem = f"{experts.count} experts in each of {source.num_hidden_layers} layers"
        raise ModelError(file, f"{problem}, but there are only {tensors} tensors", SAME_REVISION)
    family.check(source)
    family.window(source)
