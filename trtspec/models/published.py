"""Holds the published configurations of the models in trtspec's recipes, for plans without the Hub.

Each has the keys of its `config.json` that a plan needs, and for NVIDIA's FP8 models the content of
ModelOpt's `hf_quant_config.json`. The sizes were compared with Lightning-AI/litgpt's `config.py`. The model's
family derives names, shapes and dtypes of the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trtspec.models.families import family_of
from trtspec.models.families.family import shapes
from trtspec.models.source import ITEM_SIZE, SINGLE, HfConfig, Source, Tensor, source_of


def _llama(hidden: int, inner: int, layers: int, heads: int, factor: float, **more: Any) -> dict[str, Any]:
    scaling = {"factor": factor, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "rope_type": "llama3"}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "bos_token_id": 128000,
        "eos_token_id": [128001, 128008, 128009],
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-05,
        "rope_theta": 500000.0,
        "rope_scaling": {**scaling, "original_max_position_embeddings": 8192},
        "vocab_size": 128256,
        "torch_dtype": "bfloat16",
        **more,
    }


def qwen(
    version: int, hidden: int, inner: int, layers: int, heads: int, kv_heads: int, **more: Any
) -> dict[str, Any]:
    """Returns the configuration of a Qwen2, 2.5 (version 2) or 3."""
    return {
        "architectures": [f"Qwen{version}ForCausalLM"],
        "model_type": f"qwen{version}",
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": {2: 32768, 3: 40960}[version],
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "use_sliding_window": False,
        "torch_dtype": "bfloat16",
        **({"head_dim": 128, "attention_bias": False} if version == 3 else {}),
        **more,
    }


def _mistral(
    hidden: int, inner: int, layers: int, heads: int, vocabulary: int, theta: float
) -> dict[str, Any]:
    return {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": 128,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-05,
        "rope_theta": theta,
        "sliding_window": None,
        "vocab_size": vocabulary,
        "torch_dtype": "bfloat16",
    }


_TIED = {"tie_word_embeddings": True}
_SMALL, _LARGE = {"vocab_size": 151936}, {"vocab_size": 152064}
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "nvidia/Llama-3.1-405B-Instruct-FP8": _llama(16384, 53248, 126, 128, 8.0),
    "nvidia/Llama-3.3-70B-Instruct-FP8": _llama(8192, 28672, 80, 64, 8.0),
    "nvidia/Llama-3.1-8B-Instruct-FP8": _llama(4096, 14336, 32, 32, 8.0),
    "meta-llama/Llama-3.1-8B-Instruct": _llama(4096, 14336, 32, 32, 8.0),
    "meta-llama/Llama-3.2-3B-Instruct": _llama(3072, 8192, 28, 24, 32.0, head_dim=128, **_TIED),
    "meta-llama/Llama-3.2-1B-Instruct": _llama(2048, 8192, 16, 32, 32.0, head_dim=64, **_TIED),
    "Qwen/Qwen2.5-72B-Instruct": qwen(2, 8192, 29568, 80, 64, 8, **_LARGE),
    "Qwen/Qwen2.5-32B-Instruct": qwen(2, 5120, 27648, 64, 40, 8, **_LARGE),
    "Qwen/Qwen2.5-1.5B-Instruct": qwen(2, 1536, 8960, 28, 12, 2, **_SMALL, **_TIED),
    "Qwen/Qwen2.5-0.5B-Instruct": qwen(2, 896, 4864, 24, 14, 2, **_SMALL, **_TIED),
    "Qwen/Qwen3-32B": qwen(3, 5120, 25600, 64, 64, 8, **_SMALL),
    "Qwen/Qwen3-0.6B": qwen(3, 1024, 3072, 28, 16, 8, **_SMALL, **_TIED),
    "mistralai/Mistral-Large-Instruct-2407": _mistral(12288, 28672, 88, 96, 32768, 1e6),
    "mistralai/Mistral-7B-Instruct-v0.3": _mistral(4096, 14336, 32, 32, 32768, 1e6),
    "mistralai/Mistral-Small-24B-Instruct-2501": _mistral(5120, 32768, 40, 32, 131072, 1e8),
    # Its model card says: made from Qwen2.5 0.5B with Mistral's vocabulary, 593 million parameters. So it has
    # an untied lm_head.
    "alamios/Mistral-Small-3.1-DRAFT-0.5B": qwen(
        2, 896, 4864, 24, 14, 2, vocab_size=131072, bos_token_id=1, eos_token_id=2
    ),
}
"""The keys of `config.json` by the model's name on the Hub."""

_MODELOPT = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
# Whether the 405B has scales of the KV cache is not known here; without them they are 1.0, so a plan holds
# either way.
QUANTIZED: Mapping[str, Mapping[str, Any]] = {
    "nvidia/Llama-3.1-405B-Instruct-FP8": {**_MODELOPT, "kv_cache_quant_algo": None},
    "nvidia/Llama-3.3-70B-Instruct-FP8": _MODELOPT,
    "nvidia/Llama-3.1-8B-Instruct-FP8": {**_MODELOPT, "kv_cache_quant_algo": None},
}
"""The section `quantization` of `hf_quant_config.json`, of those models that have one."""


def published(repo_id: str, revision: str | None = None) -> Source | None:
    """Returns a published model, without files; None if it is not in the table.

    A named revision counts as unknown. The scales of an FP8 model are left out.
    """
    if repo_id not in CONFIGS or revision is not None:
        return None
    folder = Path(repo_id)
    config = HfConfig(folder / "config.json", CONFIGS[repo_id])
    quantized = QUANTIZED.get(repo_id)
    written = {"quantization": quantized} if quantized else None
    outline = source_of(config, config, written, {})
    return replace(outline, tensors=_tensors(outline, folder / SINGLE))


def _tensors(outline: Source, file: Path) -> Mapping[str, Tensor]:
    """Returns the weights of a model without files, one after the other."""
    weights = list(family_of(outline).weights(outline))
    linear = {part.name for weight in weights if weight.linear for part in weight.parts}
    tensors, end = dict[str, Tensor](), 0
    for name, shape in shapes(weights).items():
        dtype = "F8_E4M3" if outline.scheme and name in linear else "BF16"
        start, end = end, end + prod(shape) * ITEM_SIZE[dtype]
        tensors[name] = Tensor(name, file, dtype, shape, start, end)
    return MappingProxyType(tensors)
