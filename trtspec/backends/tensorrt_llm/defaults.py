"""The options that engines are built with beside `trtllm-build`'s own defaults, each with its reason.

The reasons are from TensorRT-LLM's performance tuning guide (useful-build-time-flags.md,
fp8-quantization.md) and from `tensorrt_llm/builder.py`, releases 1.0 to 1.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trtspec.models.families import FAMILIES
from trtspec.pipeline.engine.engine_options import Default, EngineKind
from trtspec.recipe.build_options import FIXED, Value, is_on
from trtspec.recipe.gpus import HOPPER


def defaults(kind: EngineKind, written: Mapping[str, Value]) -> Iterator[Default]:
    """Yields every default beside the sizes; `written` are the options that the recipe itself sets."""
    for option, (value, reason) in FIXED.items():
        yield Default(option, value, reason)
    yield from _attention(kind)
    yield from _products(kind, written)
    if "opt_num_tokens" not in written:
        reason = "kernels for a few draft tokens and for long prompts alike; the build takes longer"
        yield Default("multiple_profiles", "enable", reason)
    yield from _ranks(kind)


def _attention(kind: EngineKind) -> Iterator[Default]:
    fp8 = kind.fp8_weights and kind.fp8_kv_cache
    reason = "paged attention reads an FP8 KV cache in FP8 only" if fp8 else "it needs an FP8 KV cache"
    yield Default("use_fp8_context_fmha", "enable" if fp8 else "disable", reason)


def _products(kind: EngineKind, written: Mapping[str, Value]) -> Iterator[Default]:
    """Yields options for matrix products, which have few rows in a round: one for each token of a draft."""
    if not kind.fp8_weights:
        yield Default("gemm_plugin", "auto", "cuBLASLt: faster in float16 and bfloat16, and less memory")
        return
    yield Default("gemm_plugin", "disable", "NVIDIA advises against it for FP8")
    if kind.sm != HOPPER:
        return
    yield Default("low_latency_gemm_plugin", "fp8", "Hopper's FP8 kernels for the few rows of a round")
    if not FAMILIES[kind.architecture].swiglu or FAMILIES[kind.architecture].fused_gate:
        return
    if not is_on(written.get("gemm_swiglu_plugin")) and is_on(written.get("use_fused_mlp", "enable")):
        reason = "one kernel for gate, up and SwiGLU; they share a scale, so nothing is lost"
        yield Default("low_latency_gemm_swiglu_plugin", "fp8", reason)


def _ranks(kind: EngineKind) -> Iterator[Default]:
    fuses = kind.reduce_fusion and FAMILIES[kind.architecture].reduce_fusion
    if fuses and kind.tensor > 1 and kind.pipeline == 1:
        yield Default(
            "reduce_fusion", "enable", "one kernel for the sum over the ranks and the norm after it"
        )
    if ranks := kind.tensor * kind.pipeline - 1:
        yield Default("workers", ranks + 1, "every rank is built at once, each on a GPU of its own")
