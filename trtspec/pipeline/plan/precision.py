"""The choices of a model's precision, whatever loads it; pure."""

from __future__ import annotations

from trtspec.backends.table import backend_named
from trtspec.models.source import Source
from trtspec.pipeline.plan.choices import Choice, Chooser


def choose_dtype(choose: Chooser, role: str, source: Source, backend: str) -> str:
    """Returns the dtype of the unquantized weights: `float32`, `float16` or `bfloat16`.

    Raises RecipeError for the first of them with a backend that does not run it.
    """
    dtype: str = choose(f"{role}.dtype", source.dtype, "the dtype of the stored model", "model")
    if dtype == "auto":
        dtype = source.dtype
        choose.choices[-1] = Choice(f"{role}.dtype", dtype, "model", "auto: the dtype of the stored model")
    if dtype == "float32" and backend_named(backend).float32_flaw:
        problem = "float32 has no paged context FMHA in TensorRT-LLM, which speculation needs"
        raise choose.error(f"{role}.dtype", problem, "write bfloat16 or float16")
    return dtype


def choose_fp8_weights(choose: Chooser, role: str, source: Source) -> bool:
    """Says whether weights and activations are FP8.

    Raises RecipeError if the model is FP8 and the recipe does not say so.
    """
    weights = choose(f"{role}.quantization.weights", "none", "as the model is")
    if source.foreign and weights == "fp8":
        problem = f"the model {source.foreign.problem.partition(':')[0]} already"
        raise choose.error(f"{role}.quantization.weights", problem, "remove this line")
    if source.scheme and weights != "fp8":
        raise choose.error(f"{role}.quantization.weights", "the model is FP8 already", "write weights: fp8")
    return bool(weights == "fp8")


def choose_fp8_cache(choose: Chooser, role: str) -> bool:
    """Says whether the KV cache is FP8."""
    return bool(choose(f"{role}.quantization.kv_cache", "none", "as the model is") == "fp8")
