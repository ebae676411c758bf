"""Weights and KV cache of published models, against what their publishers say.

`total_size` is what the model's own `model.safetensors.index.json` says, found where `source` is. The models
are written anew from their configs, so that nothing of the index is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.published import COMMIT, CONFIGS, qwen, write_model
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.engine.engine_options import BuildOptions
from trtspec.models.source import Source, read_source
from trtspec.plan.facts import ModelFacts
from trtspec.plan.memory import EngineMemory, engine_memory
from trtspec.plan.resolved import EnginePlan

MORE: Mapping[str, Mapping[str, Any]] = {
    "Qwen/Qwen2.5-7B-Instruct": qwen(2, 3584, 18944, 28, 28, 4, vocab_size=152064),
    "Qwen/Qwen3-8B": qwen(3, 4096, 12288, 36, 32, 8, vocab_size=151936),
}


@dataclass(frozen=True)
class Published:
    """A model: `shaped_like` has its shapes and is what is read; `kv_bytes` is by hand, bfloat16, a token."""

    name: str
    total_size: int
    source: str
    kv_bytes: int
    shaped_like: str = ""
    tied: int = 0


PUBLISHED = (
    Published(
        "meta-llama/Meta-Llama-3-8B-Instruct",
        16060522496,
        "transformers' documentation, docs/source/en/models.md",
        2 * 32 * 8 * 128 * 2,
        "nvidia/Llama-3.1-8B-Instruct-FP8",
    ),
    Published(
        "meta-llama/Llama-3.1-70B (as L3.1-70B-Euryale-v2.2)",
        141107412992,
        "https://huggingface.co/Model-SafeTensors/L3.1-70B-Euryale-v2.2/commit/31d6c2423b83",
        2 * 80 * 8 * 128 * 2,
        "nvidia/Llama-3.3-70B-Instruct-FP8",
    ),
    Published(
        "meta-llama/Llama-3.2-3B",
        6425499648,
        "https://github.com/PANDASANG1231/llama_3.2-3B-huggingface-shard0 at 76307d2",
        2 * 28 * 8 * 128 * 2,
        "meta-llama/Llama-3.2-3B-Instruct",
        tied=128256 * 3072 * 2,
    ),
    Published(
        "Qwen/Qwen2.5-7B-Instruct",
        15231233024,
        "https://huggingface.co/ssmits/Qwen2-7B-Instruct-embed-base/commit/41e0e1bf2434, before it",
        2 * 28 * 4 * 128 * 2,
    ),
    Published(
        "Qwen/Qwen2.5-32B-Instruct",
        65527752704,
        "tests of public programs that read this model's index",
        2 * 64 * 8 * 128 * 2,
    ),
    Published(
        "Qwen/Qwen2.5-72B-Instruct",
        145412407296,
        "catalogs and tests of public programs, as what the official index declares",
        2 * 80 * 8 * 128 * 2,
    ),
    Published(
        "Qwen/Qwen3-8B",
        16381470720,
        "tests of a public reader of indices",
        2 * 36 * 8 * 128 * 2,
    ),
    Published(
        "Qwen/Qwen3-32B",
        65524246528,
        "tests of a public program, as output of the Hub to the letter",
        2 * 64 * 8 * 128 * 2,
    ),
    Published(
        "mistralai/Mistral-7B-Instruct-v0.3",
        14496047104,
        "documentation of a public reader of indices",
        2 * 32 * 8 * 128 * 2,
    ),
    Published(
        "mistralai/Devstral-Small-2507",
        47144806400,
        "https://github.com/fetchwiki/mistralai-Devstral-Small-2507 at 2074b22",
        2 * 40 * 8 * 128 * 2,
        "mistralai/Mistral-Small-24B-Instruct-2501",
    ),
)


def memory(source: Source, **options: Any) -> EngineMemory:
    sizes = BuildOptions(max_batch_size=1, max_input_len=99, max_seq_len=100, max_num_tokens=100)
    checkpoint = ConvertOptions("bfloat16", **options)
    return engine_memory(EnginePlan(ModelFacts("model", None, source, None), None, checkpoint, sizes))


def source_of(published: Published, hub_cache: Path, folder: Path) -> Source:
    name = published.shaped_like or published.name
    if name in CONFIGS:
        return read_source(hub_cache / f"models--{name.replace('/', '--')}/snapshots" / COMMIT)
    write_model(folder, MORE[name])
    return read_source(folder)


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda published: published.name)
def test_weights_and_keys_and_values(published: Published, hub_cache: Path, tmp_path: Path) -> None:
    source = source_of(published, hub_cache, tmp_path)
    found = memory(source)
    # An engine has its own copy of an embedding that is the head as well.
    assert found.weights - published.tied == published.total_size
    assert found.kv_per_token == published.kv_bytes
    halves = memory(source, fp8=True, fp8_kv_cache=True)
    assert halves.kv_per_token == published.kv_bytes // 2
    assert halves.weights < found.weights


def test_a_405b(hub_cache: Path) -> None:
    """The Hub counts 405,853,388,800 parameters at b906e4d of Llama 3.1 405B, whose index is gated."""
    name = "nvidia/Llama-3.1-405B-Instruct-FP8"
    source = read_source(hub_cache / f"models--{name.replace('/', '--')}/snapshots" / COMMIT)
    found = memory(source)
    assert found.weights == 2 * 405_853_388_800
    assert found.kv_per_token == 2 * 126 * 8 * 128 * 2 == 516_096
