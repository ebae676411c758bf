"""Tiny Llama models as transformers saves them, and recipes for a pair of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent

# A shell starts what runs in its background with SIGINT ignored, and children inherit that: the tests
# that press Ctrl-C would wait in vain.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Threads of OpenMP wait for each other at every product: with fewer free cores than threads, which is usual
# where servers run beside the tests, that costs a hundred times what the second thread gains.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of a file share a worker, and those that share a server of Triton, in whatever file."""
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        group = parameters.get("tiny_recipe", item.path.relative_to(TESTS).as_posix())
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture
def llama_folder(tmp_path: Path) -> Callable[..., Path]:
    """Saves a random LlamaForCausalLM in `tmp_path/<name>`; keywords replace values of its LlamaConfig."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    def save(
        name: str = "model", dtype: torch.dtype = torch.bfloat16, shard: str = "5GB", **config: Any
    ) -> Path:
        torch.manual_seed(len(name))
        values = {
            "vocab_size": 264,
            "hidden_size": 32,
            "intermediate_size": 80,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 256,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "initializer_range": 0.5,
            **config,
        }
        model = LlamaForCausalLM(LlamaConfig(**values)).to(dtype)
        model.save_pretrained(tmp_path / name, max_shard_size=shard)
        _save_tokenizer(tmp_path / name)
        return tmp_path / name

    return save


def _save_tokenizer(folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {"<s>": 0, "</s>": 1, **{letter: 2 + i for i, letter in enumerate(letters)}}
    tokenizer = Tokenizer(models.BPE(words, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')


@pytest.fixture
def pair_recipe(tmp_path: Path, llama_folder: Callable[..., Path]) -> Path:
    """A recipe of the torch backend beside its two models, `target` and `draft`."""
    llama_folder("target", hidden_size=64)
    llama_folder("draft", num_hidden_layers=1, tie_word_embeddings=True)
    recipe = tmp_path / "pair.yaml"
    recipe.write_text(
        "name: pair\n"
        "target: {model: ./target}\n"
        "draft: {model: ./draft, dtype: float32}\n"
        "engine: {backend: torch}\n"
        "hardware: {gpu: none}\n"
    )
    return recipe


@pytest.fixture
def h200_recipe(pair_recipe: Path) -> Path:
    """The same recipe for TensorRT-LLM on one H200."""
    text = pair_recipe.read_text()
    for old, new in (
        ("backend: torch", "release: 1.2.1"),
        ("gpu: none", "gpu: h200"),
        ("float32", "float16"),
    ):
        text = text.replace(old, new)
    pair_recipe.write_text(text)
    return pair_recipe
