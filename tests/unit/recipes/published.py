"""The models of `recipes/` as a Hub cache: published configurations, sparse weights, tokenizers of their ids.

`config.json` and `generation_config.json` have the published values that a build depends on; sizes were
compared with Lightning-AI/litgpt `config.py`. Tensors have the names and shapes that transformers gives them,
those of FP8 models the dtypes and scales of NVIDIA ModelOpt's export. The data is a hole in the file. The
tokens of a stand-in have other letters than the real ones, and the same ids.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

COMMIT = "0123456789" * 4
_ITEM = {"BF16": 2, "F32": 4, "F8_E4M3": 1}
_LINEAR = re.compile(r"(model\.layers\.\d+\.(?:self_attn|mlp)\.(\w)\w*_proj)\.weight")


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
        **more,
    }


def _qwen(
    version: int, hidden: int, inner: int, layers: int, heads: int, kv_heads: int, **more: Any
) -> dict[str, Any]:
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
        **({"head_dim": 128, "attention_bias": False} if version == 3 else {}),
        **more,
    }


TIED = {"tie_word_embeddings": True}
SMALL, LARGE = {"vocab_size": 151936}, {"vocab_size": 152064}
CONFIGS: dict[str, dict[str, Any]] = {
    "nvidia/Llama-3.1-405B-Instruct-FP8": _llama(16384, 53248, 126, 128, 8.0),
    "nvidia/Llama-3.3-70B-Instruct-FP8": _llama(8192, 28672, 80, 64, 8.0),
    "nvidia/Llama-3.1-8B-Instruct-FP8": _llama(4096, 14336, 32, 32, 8.0),
    "meta-llama/Llama-3.2-3B-Instruct": _llama(3072, 8192, 28, 24, 32.0, head_dim=128, **TIED),
    "meta-llama/Llama-3.2-1B-Instruct": _llama(2048, 8192, 16, 32, 32.0, head_dim=64, **TIED),
    "Qwen/Qwen2.5-72B-Instruct": _qwen(2, 8192, 29568, 80, 64, 8, **LARGE),
    "Qwen/Qwen2.5-32B-Instruct": _qwen(2, 5120, 27648, 64, 40, 8, **LARGE),
    "Qwen/Qwen2.5-1.5B-Instruct": _qwen(2, 1536, 8960, 28, 12, 2, **SMALL, **TIED),
    "Qwen/Qwen2.5-0.5B-Instruct": _qwen(2, 896, 4864, 24, 14, 2, **SMALL, **TIED),
    "Qwen/Qwen3-32B": _qwen(3, 5120, 25600, 64, 64, 8, **SMALL),
    "Qwen/Qwen3-0.6B": _qwen(3, 1024, 3072, 28, 16, 8, **SMALL, **TIED),
}

# `hf_quant_config.json`. Whether that of the 405B has scales of the KV cache is not known here; without them
# they are 1.0, so the recipe holds either way.
MODELOPT = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
QUANTIZED: dict[str, dict[str, Any]] = {
    "nvidia/Llama-3.1-405B-Instruct-FP8": {**MODELOPT, "kv_cache_quant_algo": None},
    "nvidia/Llama-3.3-70B-Instruct-FP8": MODELOPT,
    "nvidia/Llama-3.1-8B-Instruct-FP8": {**MODELOPT, "kv_cache_quant_algo": None},
}

# How many tokens were learned, the first id after them and the special tokens that have names everywhere.
_LEARNED = {"llama": 128000, "qwen2": 151643, "qwen3": 151643}
_ADDED = {"llama": 256, "qwen2": 22, "qwen3": 26}
_NAMED = {
    "llama": {0: "<|begin_of_text|>", 1: "<|end_of_text|>", 8: "<|eom_id|>", 9: "<|eot_id|>"},
    "qwen2": {0: "<|endoftext|>", 1: "<|im_start|>", 2: "<|im_end|>"},
    "qwen3": {0: "<|endoftext|>", 1: "<|im_start|>", 2: "<|im_end|>"},
}
_ENDS = {"llama": [128001, 128008, 128009], "qwen2": [151645, 151643], "qwen3": [151645, 151643]}


def write_cache(folder: Path) -> None:
    """Makes `folder` a Hub cache (`HF_HUB_CACHE`) that has every model whole, and the texts by their name."""
    for name, config in CONFIGS.items():
        snapshot = _snapshot(folder, f"models--{name.replace('/', '--')}")
        _write_model(
            snapshot, {**config, "torch_dtype": "bfloat16", "hidden_act": "silu"}, QUANTIZED.get(name)
        )
    texts = _snapshot(folder, "datasets--abisee--cnn_dailymail") / "3.0.0"
    texts.mkdir()
    (texts / "validation-00000-of-00001.parquet").touch()


def _snapshot(folder: Path, repository: str) -> Path:
    snapshot = folder / repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (folder / repository / "refs").mkdir()
    (folder / repository / "refs/main").write_text(COMMIT)
    return snapshot


def _write_model(folder: Path, config: Mapping[str, Any], quantized: Mapping[str, Any] | None) -> None:
    kind = config["model_type"]
    files = {
        "config.json": config,
        "generation_config.json": {"bos_token_id": config["bos_token_id"], "eos_token_id": _ENDS[kind]},
        "tokenizer_config.json": _tokenizer_config(kind),
    }
    if quantized:
        files["hf_quant_config.json"] = {"producer": {"name": "modelopt"}, "quantization": quantized}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "tokenizer.json").write_text(_tokenizer(kind))
    shapes = dict(_shapes(config))
    tensors = (
        _quantized(shapes, quantized) if quantized else {name: ("BF16", shapes[name]) for name in shapes}
    )
    _write_hole(folder / "model.safetensors", tensors)


def _shapes(config: Mapping[str, Any]) -> Iterator[tuple[str, list[int]]]:
    """As transformers names and shapes the tensors of one layer, which are those of every layer.

    A head that is tied is not stored.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    values = {key: value for key, value in config.items() if key != "architectures"} | {
        "num_hidden_layers": 1
    }
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**values))
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        layers = config["num_hidden_layers"] if ".layers.0." in name else 1
        for layer in range(layers):
            yield name.replace(".layers.0.", f".layers.{layer}."), list(tensor.shape)


def _quantized(
    shapes: Mapping[str, list[int]], quantized: Mapping[str, Any]
) -> dict[str, tuple[str, list[int]]]:
    tensors: dict[str, tuple[str, list[int]]] = {}
    for name, shape in shapes.items():
        linear = _LINEAR.fullmatch(name)
        tensors[name] = ("F8_E4M3" if linear else "BF16", shape)
        if linear:
            module, letter = linear.groups()
            tensors |= {f"{module}.{of}_scale": ("F32", []) for of in ("weight", "input")}
            if letter in "kv" and quantized["kv_cache_quant_algo"]:
                tensors[f"{module}.{letter}_scale"] = ("F32", [])
    return tensors


def _write_hole(file: Path, tensors: Mapping[str, tuple[str, list[int]]]) -> None:
    header, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = _ITEM[dtype]
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(file, 8 + len(text) + end)


def _tokenizer_config(kind: str) -> dict[str, Any]:
    if kind == "llama":
        return {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
    return {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}


@cache
def _tokenizer(kind: str) -> str:
    first = _LEARNED[kind]
    names = {number: f"<|special_{number}|>" for number in range(_ADDED[kind])} | _NAMED[kind]
    added = [{"id": first + number, "content": name, "special": True} for number, name in names.items()]
    vocabulary = {f"t{number}": number for number in range(first)}
    stage = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": vocabulary, "merges": []}
    return json.dumps({"added_tokens": added, "pre_tokenizer": stage, "decoder": stage, "model": model})
