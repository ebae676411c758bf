"""Engine directories of the torch backend from Hugging Face models, under TensorRT-LLM's names."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import (
    AutoConfig,
    LlamaForCausalLM,
    MistralForCausalLM,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

END = 2
MODELS = {
    "llama": LlamaForCausalLM,
    "mistral": MistralForCausalLM,
    "phi3": Phi3ForCausalLM,
    "qwen2": Qwen2ForCausalLM,
    "qwen3": Qwen3ForCausalLM,
}


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
    sizes = {
        "vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512,
        "initializer_range": 0.2, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
    }  # fmt: skip
    kind = MODELS[family]
    model = kind(AutoConfig.for_model(family, **(sizes | changes)))
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.3)
    rotary = copy.deepcopy(model.model.rotary_emb)
    model.to(dtype).eval()  # type: ignore[arg-type]
    model.model.rotary_emb = rotary  # Loading a file leaves its frequencies in float32 as well.
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
    }  # fmt: skip
    document = {"version": "1.2.1", "pretrained_config": pretrained, "build_config": limits | build}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(document))
    save_file(tensors, directory / "rank0.safetensors")
    return directory


def pretrained_config(model: PreTrainedModel) -> dict[str, Any]:
    config = model.config
    family = {
        "mistral": {"sliding_window": getattr(config, "sliding_window", None)},
        "phi3": {"hidden_act": "swiglu", "sliding_window": getattr(config, "sliding_window", None)},
        "qwen2": {"qwen_type": "qwen2", "attn_bias": True},
        "qwen3": {"qwen_type": "qwen3", "attn_bias": False},
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
        "head_size": config.head_dim,
        "hidden_act": config.hidden_act,
        "norm_epsilon": config.rms_norm_eps,
        "position_embedding_type": "rope_gpt_neox",
        "max_position_embeddings": config.max_position_embeddings,
        "rotary_base": config.rope_theta,
        "rotary_scaling": getattr(config, "rope_scaling", None),
        "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
        **family.get(config.model_type, {}),
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
        else:
            qkv = [weights[f"{theirs}.self_attn.{part}_proj.weight"] for part in "qkv"]
            tensors[f"{ours}.attention.qkv.weight"] = torch.cat(qkv)
            tensors[f"{ours}.mlp.fc.weight"] = weights[f"{theirs}.mlp.gate_proj.weight"]
            tensors[f"{ours}.mlp.gate.weight"] = weights[f"{theirs}.mlp.up_proj.weight"]
        tensors |= {
            f"{ours}.attention.dense.weight": weights[f"{theirs}.self_attn.o_proj.weight"],
            f"{ours}.input_layernorm.weight": weights[f"{theirs}.input_layernorm.weight"],
            f"{ours}.post_layernorm.weight": weights[f"{theirs}.post_attention_layernorm.weight"],
            f"{ours}.mlp.proj.weight": weights[f"{theirs}.mlp.down_proj.weight"],
        }
        if f"{theirs}.self_attn.q_proj.bias" in weights:
            biases = [weights[f"{theirs}.self_attn.{part}_proj.bias"] for part in "qkv"]
            tensors[f"{ours}.attention.qkv.bias"] = torch.cat(biases)
        for part in "qk":
            if f"{theirs}.self_attn.{part}_norm.weight" in weights:
                norm = weights[f"{theirs}.self_attn.{part}_norm.weight"]
                tensors[f"{ours}.attention.{part}_layernorm.weight"] = norm
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
