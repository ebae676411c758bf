"""Rules between the keys of a recipe whose engines trtspec builds; pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from trtspec.backends.recipes import ranks_of
from trtspec.base.findings import Finding
from trtspec.methods.method import AT_ONCE
from trtspec.recipe import devices, gpus
from trtspec.recipe.build_options import is_on, option_problem
from trtspec.recipe.loader import lacking
from trtspec.recipe.schema import BLS_MODELS, Recipe, RecipeModel

_DEVICE = "draft.device"
_REMOVE = "remove this line"
_FP8_PLUGINS = ("gemm_swiglu_plugin", "low_latency_gemm_plugin", "low_latency_gemm_swiglu_plugin")
_SWIGLU = ("gemm_swiglu_plugin", "low_latency_gemm_swiglu_plugin")
# Options that need a precision that trtspec's checkpoints do not have.
_OTHER_PRECISION = {
    "fp8_rowwise_gemm_plugin": "it is for FP8 with a scale for each row; these checkpoints have one a tensor",
    "norm_quant_fusion": "it is for NVFP4",
    "fuse_fp4_quant": "it is for NVFP4",
}
_SERVED_BY_US = "trtspec serves its engines itself; these are for vLLM, SGLang and trtllm-serve"
_LACKING = {
    AT_ONCE: "its draft models propose one token per step",
    "engine.extra_args": _SERVED_BY_US,
    "engine.environment": _SERVED_BY_US,
}


def contradictions(recipe: Recipe) -> Iterator[Finding]:
    """Finds contradictions between keys that only engines and trtspec's coordinator have."""
    yield from lacking(recipe, _LACKING)
    yield from _serving(recipe)
    yield from _times(recipe)
    yield from _device(recipe)
    for role, model in recipe.models.items():
        # Values that no recipe may have; without these, values that this recipe may not have.
        flaws = [option_problem(option, value) for option, value in model.build.items()]
        for flaw in list(filter(None, flaws)) or build_contradictions(model, recipe):
            yield replace(flaw, subject=f"{role}.build.{flaw.subject}")


def _serving(recipe: Recipe) -> Iterator[Finding]:
    layout, name = recipe.serving.layout, recipe.serving.triton_name
    if layout == "triton":
        yield Finding(
            "serving.layout", "triton is vLLM under Triton, which has no engines", "write in_process or bls"
        )
    if layout != "in_process" and name in BLS_MODELS.values():
        yield Finding(
            "serving.model_name",
            f"{name} is the name of an engine's model in the bls layout",
            "choose another name",
        )
    ranks = ranks_of(recipe)
    several = [role for role, count in ranks.items() if count > 1]
    if layout == "in_process" and several:
        problem = f"in_process needs one rank for each engine, and the {several[0]} has {ranks[several[0]]}"
        yield Finding("serving.layout", problem, "write layout: bls, or leave it out")


def _times(recipe: Recipe) -> Iterator[Finding]:
    serving = recipe.serving
    limit, delay, draft = (
        serving.default_timeout_microseconds,
        serving.max_queue_delay_microseconds,
        serving.draft_timeout_microseconds,
    )
    if delay and delay > limit:
        problem = f"{delay} is longer than a completion may take: default_timeout_microseconds is {limit}"
        yield Finding("serving.max_queue_delay_microseconds", problem, f"at most {limit}")
    if draft and draft >= limit:
        problem = f"{draft} leaves the target no time: default_timeout_microseconds is {limit}"
        yield Finding("serving.draft_timeout_microseconds", problem, f"at most {limit - 1}")


def _device(recipe: Recipe) -> Iterator[Finding]:
    """Finds a draft that cannot run on the device that the recipe names for it."""
    draft, hardware = recipe.draft, recipe.hardware
    if draft is None or draft.device is None:
        return
    for gpu in devices.gpus_of(draft.device) or ():
        if hardware.gpu == gpus.NONE:
            yield Finding(_DEVICE, f"{draft.device} is a GPU, and hardware.gpu is none", "write cpu")
        elif gpu >= hardware.count:
            problem = f"there is no {draft.device}: hardware.count is {hardware.count}, from cuda:0 on"
            repair = f"write cuda:{hardware.count - 1}, or hardware: {{count: {gpu + 1}}}"
            yield Finding(_DEVICE, problem, repair)
    if draft.parallel.ranks > 1:
        problem = f"{draft.parallel.ranks} ranks, and draft.device names one place for all, {draft.device}"
        yield Finding("draft.parallel", problem, "remove this line, or draft.device")


def build_contradictions(model: RecipeModel, recipe: Recipe) -> Iterator[Finding]:
    """Finds build options that another option of the engine, or the rest of the recipe, does not allow.

    `trtllm-build` switches some options off without a word, and fails on others after minutes of loading
    (`commands/build.py`, `builder.py`, `plugin/plugin.py` of TensorRT-LLM 1.0 to 1.2). The subject of each
    finding is the option.
    """
    yield from _precision(model)
    yield from _gpu(model, recipe)
    yield from _ranks(model)
    yield from _sizes(model, recipe)
    yield from _together(model)


def _precision(model: RecipeModel) -> Iterator[Finding]:
    fp8 = model.quantization.weights == "fp8"
    for name, reason in _OTHER_PRECISION.items():
        if is_on(model.build.get(name)):
            yield Finding(name, reason, _REMOVE)
    gemm = model.build.get("gemm_plugin")
    if gemm == "nvfp4":
        yield Finding("gemm_plugin", "nvfp4 needs NVFP4 weights", "write auto, or fp8 with FP8 weights")
    for name in (*_FP8_PLUGINS, *(("gemm_plugin",) if gemm == "fp8" else ())):
        if is_on(model.build.get(name)) and not fp8:
            yield Finding(
                name, "fp8 needs FP8 weights", "write quantization: {weights: fp8}, or remove this line"
            )
    attention = model.build.get("use_fp8_context_fmha")
    if attention is None:
        return
    if is_on(attention) and model.quantization.kv_cache != "fp8":
        problem = "trtllm-build switches it off without FP8 weights and an FP8 KV cache"
        yield Finding("use_fp8_context_fmha", problem, "write quantization: {weights: fp8, kv_cache: fp8}")
    elif not is_on(attention) and model.quantization.kv_cache == "fp8":
        problem = "trtllm-build switches it on: paged context FMHA needs it with an FP8 KV cache"
        yield Finding("use_fp8_context_fmha", problem, _REMOVE)


def _gpu(model: RecipeModel, recipe: Recipe) -> Iterator[Finding]:
    gpu = gpus.GPUS.get(recipe.hardware.gpu)
    for name in _FP8_PLUGINS:
        if gpu and is_on(model.build.get(name)) and gpu.sm != gpus.HOPPER:
            problem = f"its kernels are for Hopper (SM 90); {gpu.label} is SM {gpu.sm}"
            yield Finding(name, problem, _REMOVE)


def _ranks(model: RecipeModel) -> Iterator[Finding]:
    for name in ("reduce_fusion", "user_buffer"):
        if is_on(model.build.get(name)) and model.parallel.tensor == 1:
            yield Finding(name, "trtllm-build switches it off: with tensor 1 nothing is reduced", _REMOVE)
    if is_on(model.build.get("gemm_allreduce_plugin")) and model.parallel.tensor == 1:
        yield Finding("gemm_allreduce_plugin", "with tensor 1 nothing is reduced", _REMOVE)
    if not is_on(model.build.get("nccl_plugin", "auto")) and model.parallel.ranks > 1:
        yield Finding("nccl_plugin", f"{model.parallel.ranks} ranks talk to each other through it", _REMOVE)
    if is_on(model.build.get("pp_reduce_scatter")):
        yield Finding("pp_reduce_scatter", "trtllm-build refuses it for all models but Mixtral", _REMOVE)


def _sizes(model: RecipeModel, recipe: Recipe) -> Iterator[Finding]:
    tokens = model.build.get("opt_num_tokens")
    most = model.build.get("max_num_tokens", recipe.engine.max_num_tokens)
    if isinstance(tokens, int) and isinstance(most, int) and tokens > most:
        problem = f"{tokens} is more than one iteration may have: max_num_tokens is {most}"
        yield Finding("opt_num_tokens", problem, f"at most {most}")
    if tokens is not None and is_on(model.build.get("multiple_profiles")):
        problem = "trtllm-build takes it or multiple_profiles, not both"
        yield Finding("opt_num_tokens", problem, "remove one of the two lines")
    block = model.build.get("tokens_per_block")
    if block is not None and isinstance(most, int) and int(block) > most:
        problem = f"a block of {block} tokens is more than one iteration may have: max_num_tokens is {most}"
        yield Finding("tokens_per_block", problem, f"at most {most}")


def _together(model: RecipeModel) -> Iterator[Finding]:
    options = model.build
    swiglu = [name for name in _SWIGLU if is_on(options.get(name))]
    if len(swiglu) > 1:
        yield Finding(swiglu[0], f"{swiglu[1]} does the same", "remove one of the two lines")
    if swiglu and options.get("use_fused_mlp") is not None and not is_on(options["use_fused_mlp"]):
        yield Finding(swiglu[0], "it fuses the MLP, and use_fused_mlp is off", "remove one of the two lines")
    if is_on(options.get("user_buffer")) and not is_on(options.get("reduce_fusion", "enable")):
        yield Finding(
            "user_buffer", "trtllm-build switches it off without reduce_fusion", "write reduce_fusion: enable"
        )
    if not is_on(options.get("lora_plugin")):
        for name in ("lora_dir", "lora_ckpt_source", "lora_target_modules", "max_lora_rank"):
            if name in options:
                yield Finding(name, "trtllm-build ignores it without lora_plugin", "write lora_plugin: auto")
        if is_on(options.get("dora_plugin")):
            yield Finding("dora_plugin", "it needs lora_plugin", "write lora_plugin: auto")
