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

from tests.fakes.published import COMMIT, QWEN3_30B_A3B, write_weights
from trtspec.backends.table import backend_named
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.models.published import CONFIGS, qwen
from trtspec.models.source import Source, read_source
from trtspec.pipeline.engine.engine_options import BuildOptions
from trtspec.pipeline.plan.facts import ModelFacts
from trtspec.pipeline.plan.memory import EngineMemory, engine_memory
from trtspec.pipeline.plan.resolved import EnginePlan

MORE: Mapping[str, Mapping[str, Any]] = {
    "Qwen/Qwen2.5-7B-Instruct": qwen(2, 3584, 18944, 28, 28, 4, vocab_size=152064),
    "Qwen/Qwen3-8B": qwen(3, 4096, 12288, 36, 32, 8, vocab_size=151936),
    "google/gemma-2-2b-it": {
        "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_size": 2304,
        "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 8192, "vocab_size": 256000,
        "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-6,
        "sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        "rope_theta": 10000.0, "tie_word_embeddings": True,
    },
    "google/gemma-3-1b-it": {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": 1152,
        "intermediate_size": 6912, "num_hidden_layers": 26, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 256, "max_position_embeddings": 32768, "vocab_size": 262144,
        "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-6,
        "sliding_window": 512, "sliding_window_pattern": 6, "rope_theta": 1000000,
        "rope_local_base_freq": 10000, "tie_word_embeddings": True,
    },
    "ibm-granite/granite-3.3-2b-instruct": {
        "architectures": ["GraniteForCausalLM"], "model_type": "granite", "hidden_size": 2048,
        "intermediate_size": 8192, "num_hidden_layers": 40, "num_attention_heads": 32,
        "num_key_value_heads": 8, "max_position_embeddings": 131072, "vocab_size": 49159,
        "rms_norm_eps": 1e-5, "rope_theta": 10000000.0, "tie_word_embeddings": True,
        "attention_multiplier": 0.015625, "embedding_multiplier": 12.0, "logits_scaling": 8.0,
        "residual_multiplier": 0.22,
    },
    "microsoft/phi-4": {
        "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "hidden_size": 5120,
        "intermediate_size": 17920, "num_hidden_layers": 40, "num_attention_heads": 40,
        "num_key_value_heads": 10, "max_position_embeddings": 16384, "vocab_size": 100352,
        "rms_norm_eps": 1e-5, "rope_theta": 250000, "rope_scaling": None, "sliding_window": None,
        "original_max_position_embeddings": 16384,
    },
    "microsoft/Phi-4-mini-instruct": {
        "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "hidden_size": 3072,
        "intermediate_size": 8192, "num_hidden_layers": 32, "num_attention_heads": 24,
        "num_key_value_heads": 8, "max_position_embeddings": 131072, "vocab_size": 200064,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "partial_rotary_factor": 0.75, "sliding_window": 262144,
        "original_max_position_embeddings": 4096, "tie_word_embeddings": True,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [32.0] * 48},
    },
    "mistralai/Mixtral-8x7B-Instruct-v0.1": {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "max_position_embeddings": 32768, "vocab_size": 32000,
        "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None, "rope_theta": 1e6,
    },
    "Qwen/Qwen3-30B-A3B": QWEN3_30B_A3B,
    "Qwen/Qwen1.5-MoE-A2.7B": {
        **qwen(2, 2048, 5632, 24, 16, 16, vocab_size=151936),
        "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "num_experts": 60,
        "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Published:
    """A model: `shaped_like` has its shapes and is what is read; `kv_bytes` is by hand, bfloat16, a token.

    A checkpoint has `more` bytes: an embedding that is the head as well, and routers in float32.
    """

    name: str
    total_size: int
    source: str
    kv_bytes: int
    shaped_like: str = ""
    more: int = 0


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
        more=128256 * 3072 * 2,
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
        "google/gemma-2-2b-it",
        5228683776,
        "a public description of its index, to the letter",
        2 * 26 * 4 * 256 * 2,
        more=256000 * 2304 * 2,
    ),
    Published(
        "google/gemma-3-1b-it",
        2 * 999_885_952,
        "presets of keras-hub (Gemma3 1B), since it has no index",
        2 * 26 * 1 * 256 * 2,
        more=262144 * 1152 * 2,
    ),
    Published(
        "ibm-granite/granite-3.3-2b-instruct",
        2 * 2_533_539_840,
        "llama-bench of llama.cpp: the parameters of the GGUF file, since it has no index",
        2 * 40 * 8 * 64 * 2,
        more=49159 * 2048 * 2,
    ),
    Published(
        "microsoft/phi-4",
        29319014400,
        "tests of a public reader of indices",
        2 * 40 * 10 * 128 * 2,
    ),
    Published(
        "microsoft/Phi-4-mini-instruct",
        7672043520,
        "reports of public experiments: 3836021760 parameters in bfloat16",
        2 * 32 * 8 * 128 * 2,
        more=2 * 200064 * 3072,
    ),
    Published(
        "mistralai/Mixtral-8x7B-Instruct-v0.1",
        93405585408,
        "a public program that writes this model's index anew",
        2 * 32 * 8 * 128 * 2,
        more=2 * 32 * 8 * 4096,
    ),
    Published(
        "Qwen/Qwen3-30B-A3B",
        61064245248,
        "a public description of its loading, as the index to the letter",
        2 * 48 * 4 * 128 * 2,
        more=2 * 48 * 128 * 2048,
    ),
    Published(
        "Qwen/Qwen1.5-MoE-A2.7B",
        28631568384,
        "tests of a public program that read this model's index",
        2 * 24 * 16 * 128 * 2,
        more=2 * 24 * 60 * 2048,
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
    return engine_memory(
        EnginePlan(ModelFacts("model", None, source), None, checkpoint, sizes, backend_named("tensorrt_llm"))
    )


def source_of(published: Published, hub_cache: Path, folder: Path) -> Source:
    name = published.shaped_like or published.name
    if name in CONFIGS:
        return read_source(hub_cache / f"models--{name.replace('/', '--')}/snapshots" / COMMIT)
    write_weights(folder, MORE[name])
    return read_source(folder)


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda published: published.name)
def test_weights_and_keys_and_values(published: Published, hub_cache: Path, tmp_path: Path) -> None:
    source = source_of(published, hub_cache, tmp_path)
    found = memory(source)
    assert found.weights - published.more == published.total_size
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
