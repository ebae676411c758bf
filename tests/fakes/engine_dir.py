"""Engine directories of the torch backend from Hugging Face models, under TensorRT-LLM's names."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, LlamaForCausalLM, PreTrainedModel

from tests.support.families import FAMILIES

END = 2


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
    known = FAMILIES[family]
    sizes |= known.tiny | changes
    if known.alternates and "layer_types" not in changes:
        kinds = ["sliding_attention", "full_attention"]
        sizes["layer_types"] = [kinds[layer % 2] for layer in range(sizes["num_hidden_layers"])]
    kind: Any = known.model
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
        **FAMILIES[config.model_type].engine(config),
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
        if f"{theirs}.mlp.gate_up_proj.weight" in weights:
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
    shift = FAMILIES[model.config.model_type].norm_shift
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
