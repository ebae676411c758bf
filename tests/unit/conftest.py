"""Model folders as they come from the Hub, small enough to write in a test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

TEXT = [
    "def add(left, right):\n    return left + right\n",
    "import os\nprint(os.name)\n",
    "été → naïve 日本\n",
]
SPECIALS = ("<|begin|>", "<|end|>", "<|pad|>")


@pytest.fixture(scope="session")
def byte_level() -> Callable[..., Tokenizer]:
    """Trains a byte-level BPE tokenizer with the tokenizers library."""

    def train(size: int = 300, specials: Iterable[str] = SPECIALS, text: Iterable[str] = TEXT) -> Tokenizer:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=[AddedToken(name, special=True) for name in specials],
            show_progress=False,
        )
        tokenizer.train_from_iterator(text, trainer)
        return tokenizer

    return train


@pytest.fixture
def model_folder(tmp_path: Path, byte_level: Callable[..., Tokenizer]) -> Callable[..., Path]:
    """Writes a Llama folder: configs, tokenizer, weights of zeros; keywords replace config keys."""

    def write(
        name: str,
        *,
        hidden_size: int = 16,
        tokenizer: Tokenizer | None = None,
        settings: Any = None,
        **config: Any,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        values = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "torch_dtype": "float32",
            "vocab_size": 320,
            "hidden_size": hidden_size,
            "intermediate_size": 2 * hidden_size,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 256,
            "tie_word_embeddings": True,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "pad_token_id": 2,
            **config,
        }
        (folder / "config.json").write_text(json.dumps(values))
        (tokenizer or byte_level()).save(str(folder / "tokenizer.json"))
        names = {
            "bos_token": "<|begin|>",
            "eos_token": {"content": "<|end|>"},
            "pad_token": None,
            **(settings or {}),
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(names))
        shapes = dict(_shapes(values))
        weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        save_file(weights, folder / "model.safetensors")
        return folder

    return write


def _shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields the tensors of a LlamaForCausalLM as transformers names them, with their shapes."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head = hidden // config["num_attention_heads"]
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        for letter, heads in (
            ("q", config["num_attention_heads"]),
            *((letter, config["num_key_value_heads"]) for letter in "kv"),
        ):
            yield f"{name}.self_attn.{letter}_proj.weight", (heads * head, hidden)
        yield f"{name}.self_attn.o_proj.weight", (hidden, config["num_attention_heads"] * head)
        for projection in ("gate", "up"):
            yield f"{name}.mlp.{projection}_proj.weight", (inner, hidden)
        yield f"{name}.mlp.down_proj.weight", (hidden, inner)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{name}.{norm}.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config["vocab_size"], hidden)


@pytest.fixture
def write_recipe(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a recipe and returns its path."""

    def write(text: str | bytes, name: str = "recipe.yaml") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write
