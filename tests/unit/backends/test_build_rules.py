from __future__ import annotations

from typing import Any

import pytest

from trtspec.backends.shared.engines import build_contradictions
from trtspec.recipe.schema import Recipe

FP8 = {"weights": "fp8", "kv_cache": "fp8"}


def found(build: dict[str, Any], **changes: Any) -> dict[str, tuple[str, str | None]]:
    """Option to problem and repair, for a target with these options; `changes` are to it or to the recipe."""
    target = {"model": "a/big", "build": build, "quantization": changes.pop("quantization", {})}
    target["parallel"] = changes.pop("parallel", {})
    recipe = Recipe.model_validate(
        {
            "name": "pair",
            "target": target,
            "draft": {"model": "a/small"},
            "hardware": {"gpu": changes.pop("gpu", "h100"), "count": 8},
            **changes,
        }
    )
    findings = build_contradictions(recipe.target, recipe)
    return {finding.subject: (finding.problem, finding.repair) for finding in findings}


@pytest.mark.parametrize(
    ("build", "changes"),
    [
        ({}, {}),
        ({"gemm_plugin": "bfloat16", "use_fp8_context_fmha": "disable"}, {}),
        ({"low_latency_gemm_plugin": "fp8", "use_fp8_context_fmha": True}, {"quantization": FP8}),
        ({"gemm_plugin": "fp8"}, {"quantization": FP8}),
        ({"gemm_swiglu_plugin": "fp8", "low_latency_gemm_swiglu_plugin": "disable"}, {"quantization": FP8}),
        ({"reduce_fusion": True, "user_buffer": True}, {"parallel": {"tensor": 2}}),
        ({"workers": 1, "reduce_fusion": "disable"}, {"parallel": {"tensor": 2}}),
        ({"opt_num_tokens": 9000, "max_num_tokens": 16384}, {"engine": {"max_num_tokens": 8192}}),
        ({"opt_num_tokens": 128, "multiple_profiles": False}, {"engine": {"max_num_tokens": 4096}}),
        ({"lora_plugin": "auto", "lora_dir": "./lora", "max_lora_rank": 8, "dora_plugin": True}, {}),
        ({"tokens_per_block": 64}, {"engine": {"max_num_tokens": 4096}}),
        ({"use_fused_mlp": False, "fp8_rowwise_gemm_plugin": False}, {}),
        ({"nccl_plugin": False}, {}),
        ({"nccl_plugin": "auto"}, {"parallel": {"tensor": 2}}),
    ],
)
def test_build_options_that_fit_together_raise_no_problem(
    build: dict[str, Any], changes: dict[str, Any]
) -> None:
    assert found(build, **changes) == {}


@pytest.mark.parametrize(
    ("build", "changes", "option", "problem", "repair"),
    [
        ({"low_latency_gemm_plugin": "fp8"}, {}, "low_latency_gemm_plugin", "FP8 weights", "weights: fp8"),
        ({"gemm_plugin": "fp8"}, {}, "gemm_plugin", "FP8 weights", "weights: fp8"),
        ({"gemm_plugin": "nvfp4"}, {"quantization": FP8}, "gemm_plugin", "NVFP4 weights", "write auto"),
        ({"norm_quant_fusion": True}, {"quantization": FP8}, "norm_quant_fusion", "NVFP4", "remove"),
        ({"fuse_fp4_quant": True}, {"quantization": FP8}, "fuse_fp4_quant", "NVFP4", "remove"),
        (
            {"fp8_rowwise_gemm_plugin": "auto"},
            {"quantization": FP8},
            "fp8_rowwise_gemm_plugin",
            "one a tensor",
            "remove",
        ),
        (
            {"use_fp8_context_fmha": True},
            {"quantization": {"weights": "fp8"}},
            "use_fp8_context_fmha",
            "switches it off",
            "kv_cache: fp8",
        ),
        (
            {"use_fp8_context_fmha": False},
            {"quantization": FP8},
            "use_fp8_context_fmha",
            "switches it on",
            "remove",
        ),
        (
            {"low_latency_gemm_plugin": "fp8"},
            {"quantization": FP8, "gpu": "b200"},
            "low_latency_gemm_plugin",
            "NVIDIA B200 is SM 100",
            "remove",
        ),
        (
            {"gemm_swiglu_plugin": "fp8"},
            {"quantization": FP8, "gpu": "l40s"},
            "gemm_swiglu_plugin",
            "SM 89",
            "remove",
        ),
        ({"reduce_fusion": True}, {}, "reduce_fusion", "nothing is reduced", "remove"),
        ({"gemm_allreduce_plugin": "float16"}, {}, "gemm_allreduce_plugin", "nothing is reduced", "remove"),
        (
            {"user_buffer": True, "reduce_fusion": False},
            {"parallel": {"tensor": 2}},
            "user_buffer",
            "without reduce_fusion",
            "enable",
        ),
        ({"nccl_plugin": False}, {"parallel": {"pipeline": 2}}, "nccl_plugin", "2 ranks talk", "remove"),
        ({"pp_reduce_scatter": True}, {}, "pp_reduce_scatter", "Mixtral", "remove"),
        (
            {"opt_num_tokens": 64, "multiple_profiles": True},
            {},
            "opt_num_tokens",
            "not both",
            "remove one",
        ),
        (
            {"opt_num_tokens": 9000},
            {"engine": {"max_num_tokens": 8192}},
            "opt_num_tokens",
            "max_num_tokens is 8192",
            "at most 8192",
        ),
        (
            {"opt_num_tokens": 9000, "max_num_tokens": 4096},
            {"engine": {"max_num_tokens": 16384}},
            "opt_num_tokens",
            "max_num_tokens is 4096",
            "at most 4096",
        ),
        (
            {"tokens_per_block": 128},
            {"engine": {"max_num_tokens": 64, "max_batch_size": 1}},
            "tokens_per_block",
            "max_num_tokens is 64",
            "at most 64",
        ),
        (
            {"gemm_swiglu_plugin": "fp8", "low_latency_gemm_swiglu_plugin": "fp8"},
            {"quantization": FP8},
            "gemm_swiglu_plugin",
            "does the same",
            "remove one",
        ),
        (
            {"gemm_swiglu_plugin": "fp8", "use_fused_mlp": False},
            {"quantization": FP8},
            "gemm_swiglu_plugin",
            "use_fused_mlp is off",
            "remove one",
        ),
        ({"lora_dir": "./lora"}, {}, "lora_dir", "without lora_plugin", "lora_plugin: auto"),
        ({"dora_plugin": True}, {}, "dora_plugin", "needs lora_plugin", "lora_plugin: auto"),
    ],
)
def test_contradicting_build_options_are_reported_with_a_repair(
    build: dict[str, Any], changes: dict[str, Any], option: str, problem: str, repair: str
) -> None:
    problems = found(build, **changes)
    assert list(problems) == [option]
    assert problem in problems[option][0]
    assert repair in str(problems[option][1])
