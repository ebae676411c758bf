"""Writes the folder of a trained head: Speculators' format for EAGLE-3, its own repository's for Medusa.

Speculators 0.9 and vLLM 0.32 read the first (`trtspec.models.heads.reading`), TensorRT-LLM and vLLM 0.32
the second.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig

from trtspec.models.heads.medusa import WEIGHTS, vllm_keys
from trtspec.models.source import SINGLE, Source

SPECULATORS = "0.9.0"
_CONFIG = "config.json"


def write_eagle3(
    tensors: dict[str, Tensor],
    folder: Path,
    *,
    layer: LlamaConfig,
    aux_layers: tuple[int, ...],
    target: Source,
    verifier: str,
    num_draft_tokens: int,
) -> None:
    """Writes an EAGLE-3 head into a new folder, in its target's dtype; `verifier` is the target's name."""
    config = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": SPECULATORS,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": num_draft_tokens,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": verifier, "architectures": [target.architecture]},
        },
        "transformer_layer_config": _layer_section(layer),
        "draft_vocab_size": len(tensors["lm_head.weight"]),
        "eagle_aux_hidden_state_layer_ids": list(aux_layers),
        "target_hidden_size": None,
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
        "dtype": target.dtype,
    }
    _write(folder, config, tensors, SINGLE, target.dtype)


def _layer_section(layer: LlamaConfig) -> dict[str, Any]:
    """Returns the configuration of the head's one layer in transformers' keys."""
    return {
        "model_type": "llama",
        "vocab_size": layer.vocab_size,
        "hidden_size": layer.hidden_size,
        "intermediate_size": layer.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": layer.num_attention_heads,
        "num_key_value_heads": layer.num_key_value_heads,
        "head_dim": layer.head_dim,
        "hidden_act": layer.hidden_act,
        "rms_norm_eps": layer.rms_norm_eps,
        "max_position_embeddings": layer.max_position_embeddings,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        # The first is transformers 4's key, the second transformers 5's.
        "rope_theta": layer.rope_theta,
        "rope_scaling": layer.rope_scaling,
        "rope_parameters": {
            **(layer.rope_scaling or {"rope_type": "default"}),
            "rope_theta": layer.rope_theta,
        },
    }


def write_medusa(
    tensors: dict[str, Tensor], folder: Path, *, count: int, target: Source, verifier: str
) -> None:
    """Writes Medusa's heads into a new folder, in their target's dtype; `verifier` is the target's name."""
    config = {
        "medusa_num_heads": count,
        "medusa_num_layers": 1,
        "base_model_name_or_path": verifier,
        **vllm_keys(target.hidden_size, target.vocab_size),
    }
    _write(folder, config, tensors, WEIGHTS, target.dtype)


def _write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], file: str, dtype: str) -> None:
    folder.mkdir(parents=True)
    (folder / _CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    own = getattr(torch, dtype)
    stored = {
        name: tensor.detach().to("cpu", own if tensor.is_floating_point() else None).contiguous()
        for name, tensor in tensors.items()
    }
    save_file(stored, folder / file, metadata={"format": "pt"})
