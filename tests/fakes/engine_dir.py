"""Engine directories of the torch backend from Hugging Face models, straight from the reference (§3, §4)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

END = 2


def tiny_llama(seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> LlamaForCausalLM:
    """A random Llama with untied embeddings, grouped queries and logits far enough apart to choose from."""
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512,
        "initializer_range": 0.2, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
    }  # fmt: skip
    model = LlamaForCausalLM(LlamaConfig(**(sizes | changes)))
    return model.to(dtype).eval()


def write_engine(directory: Path, model: LlamaForCausalLM, **build: Any) -> Path:
    """`build` overrides keys of `build_config`."""
    config = model.config
    directory.mkdir(parents=True, exist_ok=True)
    pretrained = {
        "architecture": "LlamaForCausalLM",
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
        "rotary_scaling": config.rope_scaling,
        "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
    }
    limits = {
        "max_batch_size": 4, "max_input_len": 96, "max_seq_len": 128, "max_num_tokens": 8192,
        "max_beam_width": 1, "max_draft_len": 6, "speculative_decoding_mode": 2,
    }  # fmt: skip
    document = {"version": "1.2.1", "pretrained_config": pretrained, "build_config": limits | build}
    (directory / "config.json").write_text(json.dumps(document))
    save_file(checkpoint_tensors(model), directory / "rank0.safetensors")
    return directory


def checkpoint_tensors(model: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    weights = model.state_dict()
    tensors = {
        "transformer.vocab_embedding.weight": weights["model.embed_tokens.weight"],
        "transformer.ln_f.weight": weights["model.norm.weight"],
        "lm_head.weight": weights["lm_head.weight"],
    }
    for index in range(model.config.num_hidden_layers):
        theirs, ours = f"model.layers.{index}", f"transformer.layers.{index}"
        qkv = [weights[f"{theirs}.self_attn.{part}_proj.weight"] for part in "qkv"]
        tensors |= {
            f"{ours}.attention.qkv.weight": torch.cat(qkv),
            f"{ours}.attention.dense.weight": weights[f"{theirs}.self_attn.o_proj.weight"],
            f"{ours}.input_layernorm.weight": weights[f"{theirs}.input_layernorm.weight"],
            f"{ours}.post_layernorm.weight": weights[f"{theirs}.post_attention_layernorm.weight"],
            f"{ours}.mlp.fc.weight": weights[f"{theirs}.mlp.gate_proj.weight"],
            f"{ours}.mlp.gate.weight": weights[f"{theirs}.mlp.up_proj.weight"],
            f"{ours}.mlp.proj.weight": weights[f"{theirs}.mlp.down_proj.weight"],
        }
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
