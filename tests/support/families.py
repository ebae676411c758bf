"""The facts of each model family that tests hold: one row a family, and they derive all else from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import transformers

ABSENT = "not there"
Keys = dict[str, Any]
Differences = dict[str, tuple[Any, Any, str]]


@dataclass(frozen=True)
class Family:
    """One family, under transformers' `model_type`."""

    model: type[transformers.PreTrainedModel]
    """transformers' class."""
    keys: Keys
    """The keys of TensorRT-LLM's `config.json` that are this family's, of the tiny model."""
    decoder: str
    """ModelOpt's name of it."""
    differences: Differences
    """The keys in which our `config.json` differs from ModelOpt's: ours, its own, and why that is right."""
    as_if: str = ""
    """The decoder as which ModelOpt writes the `config.json`, if it writes none without TensorRT-LLM."""
    tiny: Keys = field(default_factory=dict)
    """The keys of transformers' configuration of the tiny model that are this family's."""
    engine: Callable[[Any], Keys] = lambda _: {}
    """Makes its keys of an engine's `config.json` from a configuration of transformers."""
    windowed: bool = False
    """True if any of its models may have a window in all layers."""
    alternates: bool = False
    """True if only some layers have a window."""
    scaled: bool = True
    """True if it takes all the usual scalings of rotary positions."""
    norm_shift: int = 0
    """The number that is added to the weights of norms."""
    swept: bool = False
    """True if the suite tries only the cases that differ most, and the sweep all."""


def window(config: Any) -> Keys:
    return {"sliding_window": getattr(config, "sliding_window", None)}


def moe(config: Any) -> Keys:
    count = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", 0)
    renormalized = getattr(config, "norm_topk_prob", True)
    return {"num_experts": count, "top_k": getattr(config, "num_experts_per_tok", 0),
            "normalization_mode": int(renormalized)}  # fmt: skip


def moe_of_qwen(config: Any) -> Keys:
    return {
        "hidden_act": "swiglu",
        "moe": moe(config),
        "moe_intermediate_size": config.moe_intermediate_size,
        "moe_shared_expert_intermediate_size": getattr(config, "shared_expert_intermediate_size", 0),
    }


def factors_of_granite(config: Any) -> Keys:
    return {
        "embedding_multiplier": config.embedding_multiplier,
        "attention_multiplier": config.attention_multiplier * (config.head_dim**0.5),
        "residual_multiplier": config.residual_multiplier,
        "output_multiplier_scale": 1 / config.logits_scaling,
    }


def keys_of_gemma(config: Any) -> Keys:
    keys = ("query_pre_attn_scalar", "final_logit_softcapping", "attn_logit_softcapping", "sliding_window",
            "rope_local_base_freq")  # fmt: skip
    found = {key: getattr(config, key) for key in keys if hasattr(config, key)}
    return found | {"inter_layernorms": True, "_sliding_window_pattern": 2}


COMMON: Keys = {
    "mlp_bias": False,
    "rotary_base": 10000.0,
    "rotary_scaling": None,
    "disable_weight_only_quant_plugin": False,
    "tie_word_embeddings": False,
}
LLAMA = COMMON | {"attn_bias": False, "residual_mlp": False, "remove_duplicated_kv_heads": False}
QWEN = COMMON | {
    "use_logn_attn": False,
    "num_labels": 1,
    "seq_length": 8192,
    "moe_intermediate_size": 0,
    "moe_shared_expert_intermediate_size": 0,
}
GEMMA: Keys = {
    "hidden_act": "gelu",
    "attn_bias": False,
    "mlp_bias": False,
    "inter_layernorms": True,
    "rotary_base": 10000.0,
    "rotary_scaling": None,
    "query_pre_attn_scalar": 11.0,
    "final_logit_softcapping": 6.0,
    "sliding_window": 24,
    "_sliding_window_pattern": 2,
    "tie_word_embeddings": False,
}
TINY_GEMMA: Keys = {
    "query_pre_attn_scalar": 11, "final_logit_softcapping": 6.0, "attn_logit_softcapping": None,
    "sliding_window": 24,
    "attn_implementation": "eager",  # The others do not squash scores.
}  # fmt: skip


def left_out(why: str, **ours: Any) -> Differences:
    return {key: (value, ABSENT, why) for key, value in ours.items()}


def window_left_out(size: int | None) -> Differences:
    return left_out("the torch backend's; TensorRT-LLM is told at run time", sliding_window=size)


def experts_left_out(row: Keys) -> Differences:
    return left_out("its gap: without the key there are no experts", moe=row)


ROTATED: Differences = {"rotary_pct": (ABSENT, 1.0, "of other families; rotary_embedding_dim says the same")}
RESIDUAL: Differences = {"residual_mlp": (ABSENT, False, "of Llama")}
OF_TWO = ROTATED | left_out(
    "a default of TensorRT-LLM's class", mlp_bias=False, disable_weight_only_quant_plugin=False
)
OF_LLAMA = OF_TWO | left_out("a default of LLaMAConfig", attn_bias=False, remove_duplicated_kv_heads=False)
OF_QWEN = OF_TWO | RESIDUAL | left_out(
    "a default of QWenConfig", use_logn_attn=False, num_labels=1, seq_length=8192,
    moe_intermediate_size=0, moe_shared_expert_intermediate_size=0,
)  # fmt: skip
OF_QWEN_MOE = OF_QWEN | {
    "intermediate_size": (96, 64, "its gap: that of an expert; the key is of layers without experts"),
    "moe_intermediate_size": (64, ABSENT, "its gap: the width of an expert"),
}
OF_GEMMA = ROTATED | RESIDUAL | left_out("a default of GemmaConfig", mlp_bias=False, attn_bias=False) | {
    "inter_layernorms": (True, ABSENT, "the torch backend's; TensorRT-LLM goes by the architecture"),
    "query_pre_attn_scalar": (11.0, ABSENT, "its gap: TensorRT-LLM asks for the key"),
    "final_logit_softcapping": (6.0, ABSENT, "its gap: without the key logits have no bound"),
    "_sliding_window_pattern": (2, ABSENT, "its gap: which layers have a window"),
    "sliding_window": (24, ABSENT, "its gap: how long that is"),
}  # fmt: skip
NO_FACTOR = "its gap: without the key there is no such factor"
QWEN2 = left_out("its gap: said aloud, since it differs between Qwens", attn_bias=True)
QWEN3 = left_out("its gap: QWenConfig's default is True", attn_bias=False)
FIRST_QWEN = "its gap: without the key TensorRT-LLM builds the first Qwen"
NO_NORMS = "its gap: without the key the norms of q and k are lost"

FAMILIES: Mapping[str, Family] = {
    "gemma2": Family(
        transformers.Gemma2ForCausalLM,
        GEMMA | {"attn_logit_softcapping": 3.0},
        "gemma2",
        OF_GEMMA | {"attn_logit_softcapping": (3.0, ABSENT, "its gap: without the key scores have no bound")},
        as_if="gemma",
        tiny=TINY_GEMMA | {"attn_logit_softcapping": 3.0},
        engine=keys_of_gemma,
        alternates=True,
        scaled=False,
        norm_shift=1,
        swept=True,
    ),
    "gemma3_text": Family(
        transformers.Gemma3ForCausalLM,
        GEMMA | {"rotary_base": 1e6, "rope_local_base_freq": 1000.0},
        "gemma3",
        OF_GEMMA | {"rope_local_base_freq": (1000.0, ABSENT, "its gap: the base of layers with a window")},
        as_if="gemma",
        tiny=TINY_GEMMA | {"rope_theta": 1e6, "rope_local_base_freq": 1e3},
        engine=keys_of_gemma,
        alternates=True,
        scaled=False,
        norm_shift=1,
        swept=True,
    ),
    "granite": Family(
        transformers.GraniteForCausalLM,
        LLAMA
        | {"embedding_multiplier": 3.0, "attention_multiplier": 0.25 * 8**0.5, "residual_multiplier": 0.4}
        | {"output_multiplier_scale": 0.5},
        "llama",
        OF_LLAMA
        | left_out(NO_FACTOR, embedding_multiplier=3.0, residual_multiplier=0.4, output_multiplier_scale=0.5)
        | left_out("its gap: 0.25 * sqrt(16), beside the usual 1/sqrt(16)", attention_multiplier=1.0),
        tiny={
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.25,
            "residual_multiplier": 0.4,
            "logits_scaling": 2.0,
        },
        engine=factors_of_granite,
    ),
    "llama": Family(transformers.LlamaForCausalLM, LLAMA, "llama", OF_LLAMA),
    "mistral": Family(
        transformers.MistralForCausalLM,
        LLAMA | {"sliding_window": 4096},
        "llama",
        OF_LLAMA | window_left_out(4096),
        engine=window,
        windowed=True,
    ),
    "mixtral": Family(
        transformers.MixtralForCausalLM,
        LLAMA
        | {"hidden_act": "swiglu", "sliding_window": None}
        | {"moe": {"num_experts": 8, "top_k": 2, "normalization_mode": 1}},
        "llama",
        OF_LLAMA | window_left_out(None),
        tiny={"num_local_experts": 8, "num_experts_per_tok": 2},
        engine=lambda config: {"hidden_act": "swiglu", "moe": moe(config)},
        windowed=True,
        swept=True,
    ),
    "phi3": Family(
        transformers.Phi3ForCausalLM,
        {
            "hidden_act": "swiglu",
            "rotary_pct": 1.0,
            "rotary_embedding_dim": 8,
            "rotary_base": 10000.0,
            "rotary_scaling": None,
            "tie_word_embeddings": False,
            "sliding_window": None,
        },
        "phi3",
        window_left_out(None)
        | RESIDUAL
        | {"intermediate_size": (96, 192, "its gap: it counts the rows of both halves of mlp.fc")},
        as_if="llama",
        engine=lambda config: {"hidden_act": "swiglu", **window(config)},
        windowed=True,
        scaled=False,
    ),
    "qwen2": Family(
        transformers.Qwen2ForCausalLM,
        QWEN | {"qwen_type": "qwen2", "attn_bias": True},
        "qwen",
        OF_QWEN | QWEN2 | left_out(FIRST_QWEN, qwen_type="qwen2"),
        engine=lambda _: {"qwen_type": "qwen2", "attn_bias": True},
    ),
    "qwen2_moe": Family(
        transformers.Qwen2MoeForCausalLM,
        QWEN
        | {"qwen_type": "qwen2_moe", "attn_bias": True, "hidden_act": "swiglu", "moe_intermediate_size": 64}
        | {"moe_shared_expert_intermediate_size": 96}
        | {"moe": {"num_experts": 8, "top_k": 3, "normalization_mode": 0}},
        "qwen",
        OF_QWEN_MOE
        | QWEN2
        | left_out(FIRST_QWEN, qwen_type="qwen2_moe")
        | experts_left_out({"num_experts": 8, "top_k": 3, "normalization_mode": 0})
        | left_out("its gap: the width of the shared expert", moe_shared_expert_intermediate_size=96),
        tiny={
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 64,
            "shared_expert_intermediate_size": 96,
        },
        engine=lambda config: {"qwen_type": "qwen2_moe", "attn_bias": True, **moe_of_qwen(config)},
        swept=True,
    ),
    "qwen3": Family(
        transformers.Qwen3ForCausalLM,
        QWEN | {"qwen_type": "qwen3", "attn_bias": False},
        "qwen",
        OF_QWEN | QWEN3 | left_out(NO_NORMS, qwen_type="qwen3"),
        engine=lambda _: {"qwen_type": "qwen3", "attn_bias": False},
    ),
    "qwen3_moe": Family(
        transformers.Qwen3MoeForCausalLM,
        QWEN
        | {"qwen_type": "qwen3_moe", "attn_bias": False, "hidden_act": "swiglu", "moe_intermediate_size": 64}
        | {"moe": {"num_experts": 8, "top_k": 2, "normalization_mode": 1}},
        "qwen",
        OF_QWEN_MOE
        | QWEN3
        | left_out(NO_NORMS, qwen_type="qwen3_moe")
        | experts_left_out({"num_experts": 8, "top_k": 2, "normalization_mode": 1}),
        tiny={
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "norm_topk_prob": True,
        },
        engine=lambda config: {"qwen_type": "qwen3_moe", "attn_bias": False, **moe_of_qwen(config)},
        swept=True,
    ),
}
GEMMAS = tuple(name for name, family in FAMILIES.items() if family.alternates)
WINDOWED = tuple(name for name, family in FAMILIES.items() if family.windowed)


def case(family: str, *values: Any, often: bool) -> Any:
    """A case of a parametrized test, which only the sweep tries unless it is to be tried `often`."""
    marks = () if often or not FAMILIES[family].swept else (pytest.mark.sweep,)
    return pytest.param(family, *values, marks=marks)
