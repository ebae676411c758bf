"""Engine directories of the torch backend from Hugging Face models, under TensorRT-LLM's names."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    AutoConfig,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    GraniteForCausalLM,
    LlamaForCausalLM,
    MistralForCausalLM,
    MixtralForCausalLM,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen2MoeForCausalLM,
    Qwen3ForCausalLM,
    Qwen3MoeForCausalLM,
)

END = 2
MODELS = {
    "gemma2": Gemma2ForCausalLM,
    "gemma3_text": Gemma3ForCausalLM,
    "granite": GraniteForCausalLM,
    "llama": LlamaForCausalLM,
    "mistral": MistralForCausalLM,
    "mixtral": MixtralForCausalLM,
    "phi3": Phi3ForCausalLM,
    "qwen2": Qwen2ForCausalLM,
    "qwen2_moe": Qwen2MoeForCausalLM,
    "qwen3": Qwen3ForCausalLM,
    "qwen3_moe": Qwen3MoeForCausalLM,
}
GEMMAS = ("gemma2", "gemma3_text")
GEMMA: dict[str, Any] = {
    "query_pre_attn_scalar": 11, "final_logit_softcapping": 6.0, "attn_logit_softcapping": None,
    "sliding_window": 24,
    "attn_implementation": "eager",  # The others do not squash scores.
}  # fmt: skip
# Of these the sweep tries every case, and the suite those that differ most.
SWEPT = ("gemma2", "gemma3_text", "mixtral", "qwen2_moe", "qwen3_moe")
OWN: dict[str, dict[str, Any]] = {
    "gemma2": GEMMA | {"attn_logit_softcapping": 3.0},
    "gemma3_text": GEMMA | {"rope_theta": 1e6, "rope_local_base_freq": 1e3},
    "granite": {"embedding_multiplier": 3.0, "attention_multiplier": 0.25, "residual_multiplier": 0.4,
                "logits_scaling": 2.0},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen2_moe": {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 64,
                  "shared_expert_intermediate_size": 96},
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
                  "norm_topk_prob": True},
}  # fmt: skip


def case(family: str, *values: Any, often: bool) -> Any:
    """A case of a parametrized test, which only the sweep tries unless it is to be tried `often`."""
    marks = () if often or family not in SWEPT else (pytest.mark.sweep,)
    return pytest.param(family, *values, marks=marks)


def tiny_llama(seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> LlamaForCausalLM:
    model = tiny_model("llama", seed, dtype, **changes)
    assert isinstance(model, LlamaForCausalLM)
    return model


def tiny_model(
    family: str, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any
) -> PreTrainedModel:
    """A random model with untied embeddings, grouped queries and logits far enough apart to choose from.

    Norms and biases are random too: those of a new model would hide what is left out.
    """
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512,
        "initializer_range": 0.2, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
    }  # fmt: skip
    sizes |= OWN.get(family, {}) | changes
    if family in GEMMAS and "layer_types" not in changes:
        kinds = ["sliding_attention", "full_attention"]
        sizes["layer_types"] = [kinds[layer % 2] for layer in range(sizes["num_hidden_layers"])]
    kind: Any = MODELS[family]
    model: PreTrainedModel = kind(AutoConfig.for_model(family, **sizes))
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.3)
    return in_dtype(model.eval(), dtype)


def in_dtype(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """The model in a dtype, but for what is in no file and stays in float32 when one is loaded.

    That is rotary frequencies and the scale of Gemma 3's embedding.
    """
    rotary = {name: copy.deepcopy(part) for name, part in model.model.named_children() if "rotary" in name}
    scale = getattr(model.model.embed_tokens, "embed_scale", None)
    model.to(dtype)  # type: ignore[arg-type]
    for name, part in rotary.items():
        setattr(model.model, name, part)
    if scale is not None:
        model.model.embed_tokens.embed_scale = scale
    return model


def write_engine(directory: Path, model: PreTrainedModel, **build: Any) -> Path:
    """`build` overrides keys of `build_config`."""
    tensors = checkpoint_tensors(model)
    return write_directory(directory, pretrained_config(model), tensors, **build)


def write_directory(
    directory: Path, pretrained: dict[str, Any], tensors: dict[str, torch.Tensor], **build: Any
) -> Path:
    limits = {
        "max_batch_size": 4, "max_input_len": 96, "max_seq_len": 128, "max_num_tokens": 8192,
        "max_beam_width": 1, "max_draft_len": 6, "speculative_decoding_mode": 2,
        "plugin_config": {"tokens_per_block": 32},
    }  # fmt: skip
    document = {"version": "1.2.1", "pretrained_config": pretrained, "build_config": limits | build}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(document))
    save_file(tensors, directory / "rank0.safetensors")
    return directory


def pretrained_config(model: PreTrainedModel) -> dict[str, Any]:
    config = model.config
    family: dict[str, dict[str, Any]] = {
        "gemma2": _of_gemma(config),
        "gemma3_text": _of_gemma(config),
        "granite": _of_granite(config),
        "mistral": {"sliding_window": getattr(config, "sliding_window", None)},
        "phi3": {"hidden_act": "swiglu", "sliding_window": getattr(config, "sliding_window", None)},
        "qwen2": {"qwen_type": "qwen2", "attn_bias": True},
        "qwen3": {"qwen_type": "qwen3", "attn_bias": False},
        "mixtral": {"hidden_act": "swiglu", "moe": _moe(config)},
        "qwen2_moe": {"qwen_type": "qwen2_moe", "attn_bias": True, **_of_qwen(config)},
        "qwen3_moe": {"qwen_type": "qwen3_moe", "attn_bias": False, **_of_qwen(config)},
    }
    return {
        "architecture": type(model).__name__,
        "dtype": str(model.dtype).removeprefix("torch."),
        "logits_dtype": "float32",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_size": model.model.layers[0].self_attn.head_dim,
        "hidden_act": getattr(config, "hidden_act", "gelu_pytorch_tanh"),
        "norm_epsilon": config.rms_norm_eps,
        "position_embedding_type": "rope_gpt_neox",
        "max_position_embeddings": config.max_position_embeddings,
        "rotary_base": config.rope_theta,
        "rotary_scaling": getattr(config, "rope_scaling", None),
        "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
        **family.get(config.model_type, {}),
    }


def _of_gemma(config: Any) -> dict[str, Any]:
    keys = ("query_pre_attn_scalar", "final_logit_softcapping", "attn_logit_softcapping", "sliding_window",
            "rope_local_base_freq")  # fmt: skip
    found = {key: getattr(config, key) for key in keys if hasattr(config, key)}
    return found | {"inter_layernorms": True, "_sliding_window_pattern": 2}


def _of_granite(config: Any) -> dict[str, Any]:
    if not hasattr(config, "logits_scaling"):
        return {}
    return {
        "embedding_multiplier": config.embedding_multiplier,
        "attention_multiplier": config.attention_multiplier * (config.head_dim**0.5),
        "residual_multiplier": config.residual_multiplier,
        "output_multiplier_scale": 1 / config.logits_scaling,
    }


def _moe(config: Any) -> dict[str, Any]:
    count = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", 0)
    renormalized = getattr(config, "norm_topk_prob", True)
    return {"num_experts": count, "top_k": getattr(config, "num_experts_per_tok", 0),
            "normalization_mode": int(renormalized)}  # fmt: skip


def _of_qwen(config: Any) -> dict[str, Any]:
    if not hasattr(config, "moe_intermediate_size"):
        return {}
    shared = getattr(config, "shared_expert_intermediate_size", 0)
    return {
        "hidden_act": "swiglu",
        "moe": _moe(config),
        "moe_intermediate_size": config.moe_intermediate_size,
        "moe_shared_expert_intermediate_size": shared,
    }


def checkpoint_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    weights = model.state_dict()
    tensors = {
        "transformer.vocab_embedding.weight": weights["model.embed_tokens.weight"],
        "transformer.ln_f.weight": weights["model.norm.weight"],
        "lm_head.weight": weights["lm_head.weight"],
    }
    for index in range(model.config.num_hidden_layers):
        theirs, ours = f"model.layers.{index}", f"transformer.layers.{index}"
        if model.config.model_type == "phi3":
            gate, up = weights[f"{theirs}.mlp.gate_up_proj.weight"].chunk(2)
            tensors[f"{ours}.attention.qkv.weight"] = weights[f"{theirs}.self_attn.qkv_proj.weight"]
            tensors[f"{ours}.mlp.fc.weight"] = torch.cat([up, gate])
            tensors[f"{ours}.mlp.proj.weight"] = weights[f"{theirs}.mlp.down_proj.weight"]
        else:
            qkv = [weights[f"{theirs}.self_attn.{part}_proj.weight"] for part in "qkv"]
            tensors[f"{ours}.attention.qkv.weight"] = torch.cat(qkv)
            tensors |= {f"{ours}.mlp.{name}": tensor for name, tensor in _mlp(weights, theirs).items()}
        tensors |= {
            f"{ours}.attention.dense.weight": weights[f"{theirs}.self_attn.o_proj.weight"],
            f"{ours}.input_layernorm.weight": weights[f"{theirs}.input_layernorm.weight"],
            f"{ours}.post_layernorm.weight": weights[f"{theirs}.post_attention_layernorm.weight"],
        }
        if f"{theirs}.self_attn.q_proj.bias" in weights:
            biases = [weights[f"{theirs}.self_attn.{part}_proj.bias"] for part in "qkv"]
            tensors[f"{ours}.attention.qkv.bias"] = torch.cat(biases)
        for part in "qk":
            if f"{theirs}.self_attn.{part}_norm.weight" in weights:
                norm = weights[f"{theirs}.self_attn.{part}_norm.weight"]
                tensors[f"{ours}.attention.{part}_layernorm.weight"] = norm
    for name in (name for name in weights if "_feedforward_layernorm" in name):
        tensors[name.replace("model.", "transformer.")] = weights[name]
    shift = 1 if model.config.model_type.startswith("gemma") else 0
    return {
        name: tensor.detach().clone() + shift * ("norm" in name or "ln_f" in name)
        for name, tensor in tensors.items()
    }


def _mlp(weights: dict[str, torch.Tensor], layer: str) -> dict[str, torch.Tensor]:
    """An MLP, or a router and its experts."""
    own = {name.removeprefix(f"{layer}."): w for name, w in weights.items() if name.startswith(f"{layer}.")}
    block, w1, w2, w3 = "mlp", "gate_proj", "down_proj", "up_proj"
    if "block_sparse_moe.gate.weight" in own:
        block, w1, w2, w3 = "block_sparse_moe", "w1", "w2", "w3"
    if f"{block}.gate.weight" not in own:
        names = {"fc": w1, "gate": w3, "proj": w2}
        return {f"{ours}.weight": own[f"mlp.{theirs}.weight"] for ours, theirs in names.items()}

    def of_all(name: str) -> torch.Tensor:
        count = own[f"{block}.gate.weight"].shape[0]
        return torch.stack([own[f"{block}.experts.{number}.{name}.weight"] for number in range(count)])

    tensors = {
        "router.weight": own[f"{block}.gate.weight"].float(),
        "fc.weight": torch.cat([of_all(w3), of_all(w1)], 1),
        "proj.weight": of_all(w2),
    }
    if "mlp.shared_expert_gate.weight" in own:
        up, gate = (own[f"mlp.shared_expert.{name}.weight"] for name in (w3, w1))
        tensors["shared_expert.fc.weight"] = torch.cat([up, gate])
        tensors["shared_expert.proj.weight"] = own[f"mlp.shared_expert.{w2}.weight"]
        tensors["shared_expert_gate.weight"] = own["mlp.shared_expert_gate.weight"]
    return tensors
