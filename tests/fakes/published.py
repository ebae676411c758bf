"""The models of `recipes/` as a Hub cache: published configurations, sparse weights, tokenizers of their ids.

`config.json` has the values of trtspec's own table. Tensors have the names and shapes that transformers gives
them, those of FP8 models the dtypes and scales of NVIDIA ModelOpt's export. The data is a hole in the file.
The tokens of a stand-in have other letters than the real ones, and the same ids.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from trtspec.models.published import CONFIGS, QUANTIZED, qwen

COMMIT = "0123456789" * 4
_ITEM = {"BF16": 2, "F32": 4, "F8_E4M3": 1}
_LINEAR = re.compile(r"(model\.layers\.\d+\.(?:self_attn|mlp)\.(\w)\w*_proj)\.weight")

QWEN3_30B_A3B = {
    **qwen(3, 2048, 6144, 48, 32, 4, vocab_size=151936),
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 128,
    "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """How many tokens were learned, how many are special and from which id, and what a model's files name."""

    learned: int
    special: int
    first_special: int
    named: Mapping[int, str]
    ends: list[int]
    roles: Mapping[str, str | None]


_LLAMA = Vocabulary(
    128000,
    256,
    128000,
    {128000: "<|begin_of_text|>", 128001: "<|end_of_text|>", 128008: "<|eom_id|>", 128009: "<|eot_id|>"},
    [128001, 128008, 128009],
    {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
)
_QWEN2 = Vocabulary(
    151643,
    22,
    151643,
    {151643: "<|endoftext|>", 151644: "<|im_start|>", 151645: "<|im_end|>"},
    [151645, 151643],
    {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
)
_QWEN3 = replace(_QWEN2, special=26)
# Special tokens come first; of the v3 tokenizer those that have a place of their own in its vocabulary.
_MISTRAL_V3 = Vocabulary(
    32768 - 771, 771, 0, {0: "<unk>", 1: "<s>", 2: "</s>"}, [2], {"bos_token": "<s>", "eos_token": "</s>"}
)
_TEKKEN = replace(_MISTRAL_V3, learned=131072 - 1000, special=1000)


def _vocabulary(config: Mapping[str, Any]) -> Vocabulary:
    """Mistral's models have one of two sizes, and so has what was made for them."""
    by_size = {32768: _MISTRAL_V3, 131072: _TEKKEN}
    by_family = {"llama": _LLAMA, "qwen2": _QWEN2, "qwen3": _QWEN3}
    return by_size.get(config["vocab_size"]) or by_family[config["model_type"]]


def write_cache(folder: Path) -> None:
    """Makes `folder` a Hub cache (`HF_HUB_CACHE`) that has every model whole, and the texts by their name."""
    for name, config in CONFIGS.items():
        snapshot = _snapshot(folder, f"models--{name.replace('/', '--')}")
        write_model(snapshot, config, QUANTIZED.get(name))
    texts = _snapshot(folder, "datasets--abisee--cnn_dailymail") / "3.0.0"
    texts.mkdir()
    (texts / "validation-00000-of-00001.parquet").touch()


def _snapshot(folder: Path, repository: str) -> Path:
    snapshot = folder / repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (folder / repository / "refs").mkdir()
    (folder / repository / "refs/main").write_text(COMMIT)
    return snapshot


def write_model(folder: Path, config: Mapping[str, Any], quantized: Mapping[str, Any] | None = None) -> None:
    """Writes a model in bfloat16, or `quantized` to FP8, with holes in place of its weights."""
    vocabulary = _vocabulary(config)
    write_weights(folder, config, quantized)
    files = {
        "generation_config.json": {"bos_token_id": config["bos_token_id"], "eos_token_id": vocabulary.ends},
        "tokenizer_config.json": vocabulary.roles,
    }
    if quantized:
        files["hf_quant_config.json"] = {"producer": {"name": "modelopt"}, "quantization": quantized}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "tokenizer.json").write_text(_tokenizer(vocabulary))


def write_weights(
    folder: Path, config: Mapping[str, Any], quantized: Mapping[str, Any] | None = None
) -> None:
    """Writes a model's `config.json` and its weights, without a tokenizer."""
    config = {"hidden_act": "silu", "torch_dtype": "bfloat16", **config}
    (folder / "config.json").write_text(json.dumps(config))
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


@cache
def _tokenizer(vocabulary: Vocabulary) -> str:
    specials = range(vocabulary.first_special, vocabulary.first_special + vocabulary.special)
    names = {number: f"<|special_{number}|>" for number in specials} | dict(vocabulary.named)
    added = [{"id": number, "content": name, "special": True} for number, name in names.items()]
    size = vocabulary.learned + vocabulary.special
    learned = {f"t{number}": number for number in range(size) if number not in names}
    stage = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": learned, "merges": []}
    return json.dumps({"added_tokens": added, "pre_tokenizer": stage, "decoder": stage, "model": model})
