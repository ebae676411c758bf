"""`config.json` of a checkpoint: TensorRT-LLM's `PretrainedConfig` with every default written out."""

from __future__ import annotations

from typing import Any

from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.models.families.family import ModelFamily
from trtspec.models.source import Source


def checkpoint_config(source: Source, family: ModelFamily, options: ConvertOptions) -> dict[str, Any]:
    mapping = options.mapping
    return {
        "architecture": source.architecture,
        "dtype": options.dtype,
        "logits_dtype": "float32",
        "vocab_size": source.vocab_size,
        "hidden_size": source.hidden_size,
        "intermediate_size": source.intermediate_size,
        "num_hidden_layers": source.num_hidden_layers,
        "num_attention_heads": source.num_attention_heads,
        "num_key_value_heads": source.num_key_value_heads,
        "head_size": source.head_size,
        "hidden_act": source.hidden_act,
        "norm_epsilon": source.norm_epsilon,
        "position_embedding_type": "rope_gpt_neox",
        # How many positions TensorRT-LLM makes a table of, which a factor does not lengthen there.
        "max_position_embeddings": source.max_position,
        "rotary_embedding_dim": source.head_size,
        # The ranks divide the embedding's rows, dimension 0, as `Split.VOCAB` does.
        "use_parallel_embedding": mapping.tp_size > 1,
        "embedding_sharding_dim": 0,
        "qk_layernorm": False,
        **family.config(source),
        **{key.name: key.value for key in family.keys},
        "mapping": {
            "world_size": mapping.world_size,
            "tp_size": mapping.tp_size,
            "pp_size": mapping.pp_size,
            # Every rank has a share of every expert; the defaults of releases differ.
            **({"moe_tp_size": mapping.tp_size, "moe_ep_size": 1} if source.experts else {}),
        },
        "quantization": _quantization(source, options),
    }


def _quantization(source: Source, options: ConvertOptions) -> dict[str, Any]:
    """The keywords of TensorRT-LLM's `QuantConfig`, which refuses any other.

    What is named there replaces what TensorRT-LLM leaves out by itself (`quantization/quantize.py`).
    """
    if not options.fp8:
        return {"quant_algo": None, "kv_cache_quant_algo": None}
    routers = ["*router", "*shared_expert_gate"] if source.experts else []
    return {
        "quant_algo": "FP8",
        "kv_cache_quant_algo": "FP8" if options.fp8_kv_cache else None,
        "exclude_modules": ["lm_head", *routers],
    }
