"""The model families that trtspec converts: a table, and one small module each."""

from __future__ import annotations

from trtspec.base.errors import ModelError
from trtspec.models.families import (
    gemma2,
    gemma3,
    llama,
    mistral,
    mixtral,
    phi3,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
)
from trtspec.models.families.family import ModelFamily
from trtspec.models.hf_config import SAME_REVISION
from trtspec.models.source import Source

FAMILIES: dict[str, ModelFamily] = {
    "Gemma2ForCausalLM": gemma2.FAMILY,
    "Gemma3ForCausalLM": gemma3.FAMILY,
    "LlamaForCausalLM": llama.FAMILY,
    "MistralForCausalLM": mistral.FAMILY,
    "MixtralForCausalLM": mixtral.FAMILY,
    "Phi3ForCausalLM": phi3.FAMILY,
    "Qwen2ForCausalLM": qwen2.FAMILY,
    "Qwen2MoeForCausalLM": qwen2_moe.FAMILY,
    "Qwen3ForCausalLM": qwen3.FAMILY,
    "Qwen3MoeForCausalLM": qwen3_moe.FAMILY,
}


# The reasons why trtspec builds no engine of some requested architectures (TensorRT-LLM's
# `models/__init__.py` and `models/gemma/config.py`). Other servers load these models themselves.
_SERVED = "serve it with a backend that loads models itself: engine.backend: vllm or sglang"
REFUSED = {
    "Llama4ForConditionalGeneration": "trtspec builds no engine of Llama 4: TensorRT-LLM supports it only "
    "in its PyTorch backend",
    "Gemma3ForConditionalGeneration": "trtspec builds no engine of a multimodal Gemma 3: TensorRT-LLM's "
    "engines support only its text models",
}
REFUSED["Llama4ForCausalLM"] = REFUSED["Llama4ForConditionalGeneration"]


def family_of(source: Source) -> ModelFamily:
    """The family of a model; raises ModelError for a model that trtspec does not convert."""
    if reason := REFUSED.get(source.architecture):
        raise ModelError(source.config.file, reason, _SERVED)
    if source.foreign is not None:
        raise source.foreign
    family = FAMILIES.get(source.architecture)
    if family is None:
        known = ", ".join(FAMILIES)
        raise ModelError(
            source.folder, f"architecture {source.architecture} is not supported; known: {known}"
        )
    if source.model_type != family.name:
        problem = f"architectures has {source.architecture}, but model_type is {source.model_type}"
        raise ModelError(
            source.folder / "config.json", problem, f"for this architecture model_type must be {family.name}"
        )
    _check_experts(source, family)
    family.check(source)
    return family


def _check_experts(source: Source, family: ModelFamily) -> None:
    experts, file = source.experts, source.config.file
    if (experts is not None) != family.experts:
        problem = "has no experts" if family.experts else "has experts"
        raise ModelError(file, f"{problem}, unlike {source.architecture}")
    tensors = len(source.tensors)
    if experts and experts.count * source.num_hidden_layers > tensors:
        problem = f"{experts.count} experts in each of {source.num_hidden_layers} layers"
        raise ModelError(file, f"{problem}, but there are only {tensors} tensors", SAME_REVISION)
