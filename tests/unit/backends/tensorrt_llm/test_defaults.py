from __future__ import annotations

from dataclasses import replace

import pytest

from trtspec.backends.tensorrt_llm.backend import defaults
from trtspec.pipeline.engine.engine_options import EngineKind
from trtspec.recipe.build_options import FIXED, Value, option_problem

BF16 = EngineKind("LlamaForCausalLM", fp8_weights=False, fp8_kv_cache=False, sm=90)
FP8 = replace(BF16, fp8_weights=True, fp8_kv_cache=True)


def chosen(kind: EngineKind, **written: Value) -> dict[str, Value]:
    return {name: value for name, value, _ in defaults(kind, written) if name not in FIXED}


def test_bfloat16_on_hopper() -> None:
    assert chosen(BF16) == {
        "use_fp8_context_fmha": "disable",
        "gemm_plugin": "auto",
        "multiple_profiles": "enable",
    }


def test_fp8_on_hopper() -> None:
    assert chosen(FP8) == {
        "use_fp8_context_fmha": "enable",
        "gemm_plugin": "disable",
        "low_latency_gemm_plugin": "fp8",
        "low_latency_gemm_swiglu_plugin": "fp8",
        "multiple_profiles": "enable",
    }


def test_a_fused_gate_has_no_kernel_for_two_matrices() -> None:
    phi3 = chosen(replace(FP8, architecture="Phi3ForCausalLM"))
    assert chosen(FP8).items() - phi3.items() == {("low_latency_gemm_swiglu_plugin", "fp8")}


@pytest.mark.parametrize(("rows", "value"), [(64, "fp8"), (65, "disable")])
def test_low_latency_kernels_are_on_for_the_few_rows_that_nvidia_tests(rows: int, value: str) -> None:
    found = chosen(replace(FP8, rows=rows))
    assert found["low_latency_gemm_plugin"] == value
    assert ("low_latency_gemm_swiglu_plugin" in found) is (value == "fp8")


@pytest.mark.parametrize("sm", [89, 100])
def test_other_gpus_have_no_low_latency_kernels(sm: int) -> None:
    assert not [name for name in chosen(replace(FP8, sm=sm)) if name.startswith("low_latency")]


def test_fp8_weights_with_another_cache_have_no_fp8_attention() -> None:
    assert chosen(replace(FP8, fp8_kv_cache=False))["use_fp8_context_fmha"] == "disable"


@pytest.mark.parametrize(
    ("written", "missing"),
    [
        ({"gemm_swiglu_plugin": "fp8"}, "low_latency_gemm_swiglu_plugin"),
        ({"use_fused_mlp": False}, "low_latency_gemm_swiglu_plugin"),
        ({"opt_num_tokens": 64}, "multiple_profiles"),
    ],
)
def test_a_default_is_dropped_when_the_recipe_sets_a_conflicting_option(
    written: dict[str, Value], missing: str
) -> None:
    assert missing in chosen(FP8)
    assert missing not in chosen(FP8, **written)


def test_several_ranks() -> None:
    two = replace(BF16, tensor=2)
    assert (chosen(two)["reduce_fusion"], chosen(two)["workers"]) == ("enable", 2)
    for architecture in ("GraniteForCausalLM", "MistralForCausalLM", "Phi3ForCausalLM", "Qwen2ForCausalLM"):
        assert "reduce_fusion" not in chosen(replace(two, architecture=architecture))
    assert "reduce_fusion" not in chosen(replace(two, reduce_fusion=False))
    both = chosen(replace(two, pipeline=2))
    assert (both["workers"], "reduce_fusion" in both) == (4, False)


@pytest.mark.parametrize("kind", [BF16, FP8, replace(FP8, tensor=4)])
def test_each_default_may_stand_in_a_recipe_and_has_a_reason(kind: EngineKind) -> None:
    for name, value, reason in defaults(kind, {}):
        assert option_problem(name, value) is None
        assert reason
        assert "\n" not in reason
