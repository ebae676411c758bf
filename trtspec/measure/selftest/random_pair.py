"""Writes a pair of random models with the proportions of real ones, which the tiny pair lacks.

Their heads have 128 dimensions, and eight of them share one of the KV cache. A seed makes them, so that
nothing is downloaded. FP8's kernels get no size that no user has: K and N are multiples of 128.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from shutil import copyfile
from typing import Any

import torch
from safetensors.torch import save_file

from trtspec.base.digest import digest_of
from trtspec.base.files import write_atomically
from trtspec.checkpoint.calibration import FILE, Amax, CalibratedRanges, write_calibration

HIDDEN, INTERMEDIATE, LAYERS = 1024, 2048, 2
HEADS, KV_HEADS, HEAD_DIM = 8, 1, 128
LONGEST = 8192
"""The positions of a text."""
_SEED = 20
_SPREAD = 3.0
"""The standard deviation of the logits in nats, so that the likeliest token is clear at most positions."""
_DRIFT = 0.1
"""The noise of the draft's logits relative to theirs, so that drafts are accepted often and not always."""
_RANGE, _PRODUCT_RANGE = 6.0, 24.0
"""The largest absolute input of a layer: of normal numbers, and of products of two."""
_TOKENIZER = ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json")


def write_random_pair(folder: Path, tokenizer: Path, vocab_size: int, window: int | None = None) -> None:
    """Writes `target` and `draft` in `folder`, each with the FP8 scales of its layers.

    `tokenizer` is a model whose tokenizer both get, with tokens up to `vocab_size` that no text needs. With a
    `window` each token sees so many tokens before it, as Mistral's models do.
    """
    size = {"vocab_size": vocab_size, "sliding_window": window}
    if (folder / "draft" / FILE).is_file():  # It is written last.
        return
    random = torch.Generator().manual_seed(_SEED)
    tensors = _tensors(vocab_size, random)
    _write(folder / "target", tokenizer, tensors, size)
    head = tensors["lm_head.weight"]
    tensors["lm_head.weight"] = head + _DRIFT * head.std() * torch.randn(head.shape, generator=random)
    _write(folder / "draft", tokenizer, tensors, size)


def _tensors(vocab_size: int, random: torch.Generator) -> dict[str, torch.Tensor]:
    def normal(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        """Returns a matrix whose product with normal numbers has the standard deviation `scale`."""
        matrix: torch.Tensor = torch.randn(rows, columns, generator=random) * (scale / columns**0.5)
        return matrix

    rows = HEADS * HEAD_DIM
    tensors = {"model.embed_tokens.weight": normal(vocab_size, HIDDEN, HIDDEN**0.5)}
    for layer in range(LAYERS):
        shapes = {
            "self_attn.q_proj": (rows, HIDDEN),
            "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.o_proj": (HIDDEN, rows),
            "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
            "mlp.up_proj": (INTERMEDIATE, HIDDEN),
            "mlp.down_proj": (HIDDEN, INTERMEDIATE),
        }
        # What a layer adds outweighs the token before, so that a wrong layer is another text.
        for name, shape in shapes.items():
            scale = 3.0 if name in ("self_attn.o_proj", "mlp.down_proj") else 1.0
            tensors[f"model.layers.{layer}.{name}.weight"] = normal(*shape, scale)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{name}.weight"] = torch.ones(HIDDEN)
    return tensors | {
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": normal(vocab_size, HIDDEN, _SPREAD),
    }


def _write(
    folder: Path, tokenizer: Path, tensors: Mapping[str, torch.Tensor], size: Mapping[str, int | None]
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in _TOKENIZER:
        copyfile(tokenizer / name, folder / name)
    content = json.loads((tokenizer / "tokenizer.json").read_text(encoding="utf-8"))
    known: dict[str, int] = content["model"]["vocab"]
    known |= {f"<unused {number}>": number for number in range(len(known), size["vocab_size"] or 0)}
    write_atomically(folder / "tokenizer.json", json.dumps(content))
    write_atomically(folder / "config.json", json.dumps(_config(size), indent=2) + "\n")
    file = folder / "model.safetensors"
    save_file({name: tensor.bfloat16() for name, tensor in tensors.items()}, file)
    write_calibration(folder / FILE, _ranges(tensors, hashlib.sha256(file.read_bytes()).hexdigest()))


def _config(size: Mapping[str, int | None]) -> dict[str, Any]:
    family = "Mistral" if size["sliding_window"] else "Llama"
    return {
        "architectures": [f"{family}ForCausalLM"],
        "model_type": family.lower(),
        **size,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": LONGEST,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "torch_dtype": "bfloat16",
    }


def _ranges(tensors: Mapping[str, torch.Tensor], sha256: str) -> CalibratedRanges:
    """Returns the ranges of the layers: of the weights as they are, of the inputs by their distribution."""
    linears = {
        name.removesuffix(".weight"): Amax(
            float(tensor.bfloat16().abs().max()), _PRODUCT_RANGE if "down_proj" in name else _RANGE
        )
        for name, tensor in tensors.items()
        if "proj" in name
    }
    kv = {name: _RANGE for name in linears if name.endswith(("k_proj", "v_proj"))}
    # Weights are named as a calibration names them: by their files.
    weights = digest_of([[{"model.safetensors": sha256}], {}])
    return CalibratedRanges(linears, kv, {"model": "random", "weights": weights})
