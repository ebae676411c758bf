"""Inspects TensorRT-LLM's `PretrainedConfig`, of a checkpoint or within an engine.

Defaults are those of `tensorrt_llm/models/modeling_utils.py`, which silently stand for keys that are left
out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from trtspec.base.findings import Finding, note
from trtspec.checkpoint import mapping as ranks
from trtspec.checkpoint.mapping import misfit
from trtspec.models.families import FAMILIES
from trtspec.models.families.family import shapes
from trtspec.models.heads import eagle, medusa
from trtspec.models.sizes import ExpertSizes, Sizes
from trtspec.models.source import LARGEST

SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
OPTIONAL_SIZES = (
    "num_key_value_heads",
    "head_size",
    "moe_intermediate_size",
    "moe_shared_expert_intermediate_size",
)
MOST_BLOCKS = 1 << 16  # layers times experts, each of which has tensors: far more than any model has


def sizes_of(config: Mapping[str, Any]) -> Sizes | None:
    """The sizes in a config; None for a family that trtspec lacks, or if a size is missing or impossible."""
    family = FAMILIES.get(str(config.get("architecture")))
    if family is None or not all(is_size(config.get(key)) for key in SIZES):
        return None
    if not all(is_size(config[key]) for key in OPTIONAL_SIZES if config.get(key)):
        return None
    heads, experts = config["num_attention_heads"], _experts(config) if family.experts else None
    if family.experts and experts is None:
        return None
    if config["num_hidden_layers"] * (experts.count if experts else 1) > MOST_BLOCKS:
        return None
    return Sizes(
        architecture=config["architecture"],
        **{key: config[key] for key in SIZES},
        num_key_value_heads=config.get("num_key_value_heads") or heads,
        head_size=config.get("head_size") or max(config["hidden_size"] // heads, 1),
        tie_word_embeddings=bool(config.get("tie_word_embeddings")),
        experts=experts,
    )


def parameters(sizes: Sizes) -> int:
    """Returns the number of parameters of the model; what several ranks hold counts once."""
    return sum(map(prod, shapes(FAMILIES[sizes.architecture].weights(sizes)).values()))


def mapping_of(config: Mapping[str, Any]) -> ranks.Mapping:
    """The mapping in a config; a size that it does not have is 1."""
    sizes = section(config, "mapping")
    return ranks.Mapping(*(sizes[key] if is_size(sizes.get(key)) else 1 for key in ("tp_size", "pp_size")))


def section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The object under a key of the config; an empty one if there is none."""
    found = config.get(key)
    return found if isinstance(found, dict) else {}


def _experts(config: Mapping[str, Any]) -> ExpertSizes | None:
    """The experts in a config, whose widths only TensorRT-LLM's Qwen tells from that of an MLP."""
    moe = section(config, "moe")
    if not (is_size(moe.get("num_experts")) and is_size(moe.get("top_k"))):
        return None
    width = config.get("moe_intermediate_size") or config["intermediate_size"]
    shared = config.get("moe_shared_expert_intermediate_size") or 0
    return ExpertSizes(moe["num_experts"], moe["top_k"], width, shared)


def is_size(value: Any) -> bool:
    """Returns True if a value of a config can be a size of a model, or of its mapping."""
    return type(value) is int and 0 < value <= LARGEST


_KEYS = (
    *("architecture", "dtype", "logits_dtype", "num_hidden_layers", "hidden_size", "intermediate_size"),
    *("num_attention_heads", "num_key_value_heads", "head_size", "hidden_act", "vocab_size"),
    *("max_position_embeddings", "sliding_window", "rotary_base", "rotary_scaling", "qwen_type"),
    "producer",
)
# The keywords of `QuantConfig`.
_QUANTIZATION = {
    *("quant_algo", "kv_cache_quant_algo", "group_size", "smoothquant_val", "clamp_val", "use_meta_recipe"),
    *("has_zero_point", "pre_quant_scale", "exclude_modules", "mamba_ssm_cache_dtype"),
}
# What TensorRT-LLM takes for a key that is missing. It is wrong for every family.
_DEFAULTS = {
    "hidden_act": "gelu",
    "position_embedding_type": "learned_absolute",
    "rotary_base": "10000",
    "norm_epsilon": "1e-5",
}
_ANY_QWEN = "QWenForCausalLM"  # what ModelOpt calls all of them
_CONVERT = "convert the model with trtspec, which writes every key"


def facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the facts that a report lists of the model, by TensorRT-LLM's keys; None for what the config
    does not have.
    """
    quantization, sizes = section(config, "quantization"), sizes_of(config)
    mapping = mapping_of(config)
    return {
        **{key: config.get(key) for key in _KEYS},
        "parameters": parameters(sizes) if sizes else None,
        "quant_algo": quantization.get("quant_algo"),
        "kv_cache_quant_algo": quantization.get("kv_cache_quant_algo"),
        "tp_size": mapping.tp_size,
        "pp_size": mapping.pp_size,
    }


def oddities(config: Mapping[str, Any]) -> Iterator[Finding]:
    """Finds what TensorRT-LLM refuses, or silently misreads."""
    yield from _family(config)
    yield from _sizes(config)
    yield from _numbers(config)
    yield from _parallel(config)


def _family(config: Mapping[str, Any]) -> Iterator[Finding]:
    """Finds keys that are missing or wrong, with which TensorRT-LLM would build another model."""
    architecture = str(config.get("architecture"))
    if architecture in (medusa.TARGET_ARCHITECTURE, eagle.TARGET_ARCHITECTURE):
        # A model of the family that `model_type` names, with heads; EAGLE's is always a Llama.
        kind = config.get("model_type", "llama")
        named = (name for name, family in FAMILIES.items() if family.name == kind)
        architecture = next(named, architecture)
    if architecture not in FAMILIES:
        yield note("architecture", f"{architecture} is not supported by trtspec")
        if architecture == _ANY_QWEN and not config.get("qwen_type"):
            problem = "is missing; TensorRT-LLM would silently leave out the norms of a Qwen3"
            yield Finding("qwen_type", problem, _CONVERT)
        return
    keys = FAMILIES[architecture].keys
    for name in (name for name in FAMILIES[architecture].needs if config.get(name) is None):
        yield Finding(name, "is missing; TensorRT-LLM would build another model without it", _CONVERT)
    its_own = {key.name for key in keys}
    for name, default in _DEFAULTS.items():
        if config.get(name) is None and name not in its_own:
            yield Finding(name, f"is missing; TensorRT-LLM uses {default}", _CONVERT)
    for key in keys:
        found = config.get(key.name)
        if (key.default if found is None else found) != key.value:
            problem = f"is {found}, not {key.value}; {key.otherwise}"
            yield Finding(key.name, problem, _CONVERT)


def _sizes(config: Mapping[str, Any]) -> Iterator[Finding]:
    """Finds sizes that no model has, so that no engine can be built of it."""
    for where in (config, section(config, "mapping")):
        keys = (*SIZES, *OPTIONAL_SIZES) if where is config else ("tp_size", "pp_size", "cp_size")
        for key in keys:
            found = where.get(key)
            # 0 stands for what is left out, but for the layers and the like.
            if found is not None and not is_size(found) and (found or key in SIZES):
                problem = f"is {found!r:.40}, and must be a whole number from 1 to {LARGEST}"
                yield Finding(key, problem, _CONVERT)
    layers = config.get("num_hidden_layers", 0)
    if is_size(layers) and layers > MOST_BLOCKS:
        yield Finding("num_hidden_layers", f"is {layers}, which is more than any model has", _CONVERT)


def _numbers(config: Mapping[str, Any]) -> Iterator[Finding]:
    quantization = section(config, "quantization")
    unknown = sorted(quantization.keys() - _QUANTIZATION)
    if unknown:
        problem = f"has {', '.join(unknown)}, which TensorRT-LLM refuses with a TypeError"
        yield Finding("quantization", problem, "remove it from config.json")
    weights, cache = quantization.get("quant_algo"), quantization.get("kv_cache_quant_algo")
    if weights == "FP8" and cache is None:
        problem = (
            f"is {config.get('dtype')} although the weights are FP8; it takes twice the memory of an FP8 "
            "cache"
        )
        yield note("KV cache", problem, "quantization: {weights: fp8, kv_cache: fp8}")
    if cache == "FP8" and weights != "FP8":
        problem = "is FP8 but the weights are not: TensorRT-LLM silently turns paged context FMHA off"
        yield Finding("KV cache", problem, "quantization: {weights: fp8, kv_cache: fp8}")
    if config.get("logits_dtype", "float32") != "float32":
        problem = f"is {config['logits_dtype']}; Triton's templates declare logits as TYPE_FP32"
        yield note("logits_dtype", problem, "trtllm-build --logits_dtype float32")


def _parallel(config: Mapping[str, Any]) -> Iterator[Finding]:
    mapping, ranks, sizes = section(config, "mapping"), mapping_of(config), sizes_of(config)
    product = ranks.world_size * (mapping["cp_size"] if is_size(mapping.get("cp_size")) else 1)
    if mapping.get("world_size", 1) != product:
        problem = (
            f"world_size is {mapping.get('world_size')}, but the product of tp_size, pp_size and cp_size is "
            f"{product}"
        )
        yield Finding("mapping", problem, _CONVERT)
    if sizes is None:
        return
    is_fp8 = section(config, "quantization").get("quant_algo") == "FP8"
    if found := misfit(sizes, ranks, fp8=is_fp8):
        yield replace(found, subject="mapping")
    if sizes.vocab_size % ranks.tp_size:
        problem = f"{sizes.vocab_size} is not a multiple of tp_size; the last rank is padded with zero rows"
        yield note("vocab_size", problem)
