"""Rules between the keys of one valid recipe. They are pure: the models are not looked at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from trtspec.base.findings import Finding
from trtspec.base.roles import Role
from trtspec.recipe import devices, gpus, releases, server_releases
from trtspec.recipe.build_limits import build_contradictions
from trtspec.recipe.build_options import SIZES, option_problem
from trtspec.recipe.inside_limits import inside_contradictions
from trtspec.recipe.layers import AUTO, LayerSearch
from trtspec.recipe.schema import BLS_MODELS, NOT_OF_HEADS, OF_TARGET, Draft, Recipe, RecipeModel
from trtspec.recipe.server_limits import server_contradictions
from trtspec.recipe.support import ENGINES, SERVERS, refusal

_TOKENS_PER_BLOCK = 32
_DEVICE = "draft.device"
_NEEDS_GPU = {
    "tensorrt_llm": "TensorRT-LLM engines need a GPU",
    "tensorrt_llm_pytorch": "TensorRT-LLM needs a GPU",
    "sglang": "SGLang's releases for a CPU are built from source",
}


def contradictions(recipe: Recipe) -> Iterator[Finding]:
    """Finds keys of the recipe that contradict each other; each subject is the dotted key to change."""
    yield from _backend(recipe)
    yield from contradictions_of_any_backend(recipe)
    yield from server_contradictions(recipe) if recipe.backend in SERVERS else _engines(recipe)
    for role, model in recipe.models.items():
        yield from _precision(role, model, recipe)


def contradictions_of_any_backend(recipe: Recipe) -> Iterator[Finding]:
    """Finds what no backend takes; `torch`, where it is asked for, takes all the rest."""
    yield from _draft(recipe)
    yield from _layers(recipe)
    yield from _head(recipe)
    yield from _draft_length(recipe)
    yield from _hardware(recipe)
    yield from _lengths(recipe)
    yield from _kubernetes(recipe)
    for role, model in recipe.models.items():
        yield from _parallel(role, model, recipe)


def _engines(recipe: Recipe) -> Iterator[Finding]:
    """Finds contradictions in what only engines have, and trtspec's coordinator before them."""
    yield from _serving(recipe)
    yield from _times(recipe)
    yield from _overlap(recipe)
    yield from _device(recipe)
    yield from inside_contradictions(recipe)
    for role, model in recipe.models.items():
        yield from _build_options(role, model, recipe)


def _backend(recipe: Recipe) -> Iterator[Finding]:
    """Finds a method that the backend does not run, and a release that it does not have."""
    backend, version, method = recipe.backend, recipe.engine.release, recipe.speculation.method.kind
    if found := refusal(method, backend):
        problem = f"{backend} does not run {method}: {found.reason}"
        yield Finding("speculation.method", problem, "write another method, or another engine.backend")
    if version:
        of_server = backend in SERVERS
        flaw = server_releases.flaw(backend, version) if of_server else releases.flaw(version)
        if flaw:
            yield Finding("engine.release", *flaw)


def _draft_length(recipe: Recipe) -> Iterator[Finding]:
    speculation = recipe.speculation
    if speculation.policy == "adaptive" and speculation.num_draft_tokens is not None:
        problem = "fixes K in every round, which the adaptive policy would choose"
        yield Finding("speculation.num_draft_tokens", problem, "remove this line, or write policy: fixed")


def _draft(recipe: Recipe) -> Iterator[Finding]:
    method = recipe.speculation.method
    if method.has_model and recipe.draft is None:
        repair = "name one, or write speculation: {method: ngram}, which needs none"
        yield Finding("draft", "is missing: the small model that proposes tokens", repair)
    if not method.has_model and recipe.draft is not None:
        problem = f"proposes nothing: speculation.method is {method.kind}"
        yield Finding("draft", problem, "remove this section, or write method: draft_model")
    if not method.has_model and recipe.serving.draft_timeout_microseconds is not None:
        problem = f"no draft is waited for: speculation.method is {method.kind}"
        yield Finding("serving.draft_timeout_microseconds", problem, "remove this line")
    for found in method.contradictions():
        yield replace(found, subject=f"speculation.method.{found.subject}")


def _layers(recipe: Recipe) -> Iterator[Finding]:
    """Finds what a draft of the target's layers cannot have of its own."""
    draft, target = recipe.draft, recipe.target
    if draft is None:
        return
    if draft.layers_of_target is None:
        if draft.layer_search != LayerSearch():
            problem = "nothing is searched for without layers_of_target: auto"
            yield Finding("draft.layer_search", problem, "remove this section, or write it")
        return
    for key in OF_TARGET:
        if getattr(draft, key) != getattr(target, key):
            problem = f"the draft is layers of the target, and has its {key}"
            yield Finding(f"draft.{key}", problem, "remove this line, or layers_of_target")
    if draft.layers_of_target != AUTO and draft.layer_search != LayerSearch():
        problem = "nothing is searched for: layers_of_target names the layers"
        yield Finding("draft.layer_search", problem, "remove this section, or write layers_of_target: auto")


def _head(recipe: Recipe) -> Iterator[Finding]:
    """Finds what a head cannot have of its own, since it runs in its target's engine."""
    draft, method = recipe.draft, recipe.speculation.method
    if draft is None or not method.is_head or recipe.backend in SERVERS:
        return
    usual = Draft(model=draft.model)
    for key in NOT_OF_HEADS:
        if getattr(draft, key) != getattr(usual, key):
            problem = f"a head runs in its target's engine, as the target does: method is {method.kind}"
            yield Finding(f"draft.{key}", problem, "remove this line")


def _build_options(role: str, model: RecipeModel, recipe: Recipe) -> Iterator[Finding]:
    """Finds options with a value that no recipe may have; if there are none, those that this one may not."""
    flaws = [option_problem(option, value) for option, value in model.build.items()]
    for flaw in list(filter(None, flaws)) or build_contradictions(model, recipe):
        yield replace(flaw, subject=f"{role}.build.{flaw.subject}")


def _hardware(recipe: Recipe) -> Iterator[Finding]:
    if recipe.hardware.gpu == gpus.NONE and (why := _NEEDS_GPU.get(recipe.backend)):
        problem = f"gpu is none, but {why}"
        yield Finding("engine.backend", problem, "write backend: torch, or name a GPU in hardware.gpu")


def _lengths(recipe: Recipe) -> Iterator[Finding]:
    engine, longest_draft = recipe.engine, recipe.speculation.max_draft_len
    prompt, text, step = engine.max_input_len, engine.max_seq_len, engine.max_num_tokens
    if prompt and text and prompt >= text:
        problem = f"{prompt} leaves no room for an answer: max_seq_len, prompt and answer together, is {text}"
        yield Finding("engine.max_input_len", problem, f"at most {text - 1}")
    if longest_draft and text and longest_draft >= text:
        problem = f"a draft of {longest_draft} tokens never fits into max_seq_len, which is {text}"
        yield Finding("speculation.max_draft_len", problem, f"at most {text - 1}")
    asked = recipe.speculation.num_draft_tokens
    if asked and longest_draft and asked > longest_draft:
        problem = f"{asked} is more than the target verifies: max_draft_len is {longest_draft}"
        yield Finding("speculation.num_draft_tokens", problem, f"at most {longest_draft}")
    if not step:
        return
    if step < _TOKENS_PER_BLOCK:
        problem = f"{step} is less than one block of the KV cache"
        yield Finding("engine.max_num_tokens", problem, f"at least {_TOKENS_PER_BLOCK}")
    needed = engine.max_batch_size * ((longest_draft or 1) + 1)
    if step < needed:
        draft = f"max_draft_len {longest_draft}" if longest_draft else "one draft token"
        problem = (
            f"{step} is too few to verify max_batch_size {engine.max_batch_size} requests with {draft} each"
        )
        yield Finding("engine.max_num_tokens", problem, f"at least {needed}, or leave it out")


def _serving(recipe: Recipe) -> Iterator[Finding]:
    layout, name = recipe.serving.layout, recipe.serving.model_name
    if layout == "triton" and recipe.backend in ENGINES:
        yield Finding(
            "serving.layout", "triton is vLLM under Triton, which has no engines", "write in_process or bls"
        )
    if layout != "in_process" and name in BLS_MODELS.values():
        yield Finding(
            "serving.model_name",
            f"{name} is the name of an engine's model in the bls layout",
            "choose another name",
        )
    ranks = recipe.ranks
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


def _overlap(recipe: Recipe) -> Iterator[Finding]:
    """Finds two engines of several ranks on the same GPUs, which wait for each other forever.

    This is issue #3499 of TensorRT-LLM.
    """
    target, draft, count = recipe.ranks[Role.TARGET], recipe.ranks.get(Role.DRAFT, 0), recipe.hardware.count
    if recipe.backend == "tensorrt_llm" and 1 < target <= count and 1 < draft <= count < target + draft:
        problem = (
            f"{draft} ranks on GPUs that have ranks of the target too: TensorRT-LLM hangs with two requests"
        )
        yield Finding(
            "draft.parallel",
            problem,
            f"write tensor: 1 for the draft, or hardware: {{count: {target + draft}}}",
        )


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
    if draft.device == devices.CPU and recipe.backend == "tensorrt_llm":
        for name in draft.build:
            if name not in SIZES:
                problem = "trtllm-build does not build this engine: draft.device is cpu"
                yield Finding(f"draft.build.{name}", problem, "remove this line")


def _kubernetes(recipe: Recipe) -> Iterator[Finding]:
    if hosts := recipe.kubernetes.hosts:
        count, each = recipe.hardware.count, hosts.gpus_per_host
        if recipe.hardware.gpu == gpus.NONE or count <= each or count % each:
            problem = f"the engines span no such hosts: hardware has {count} x {recipe.hardware.gpu}"
            yield Finding("kubernetes.hosts.gpus_per_host", problem, "remove this section, or correct it")
        if recipe.kubernetes.form == "kserve":
            problem = "KServe makes no groups of pods of a runtime of your own"
            yield Finding("kubernetes.form", problem, "write form: deployment, or remove kubernetes.hosts")
    if recipe.kubernetes.secrets.hub and recipe.backend in ENGINES:
        problem = "pods pull engines from the store, and nothing from the Hub"
        yield Finding(
            "kubernetes.secrets.hub", problem, "remove this line; jobs have kubernetes.build.secret"
        )
    yield from _scaling(recipe)


def _scaling(recipe: Recipe) -> Iterator[Finding]:
    fewest, scaling = recipe.kubernetes.replicas, recipe.kubernetes.autoscaling
    if scaling is None:
        return
    if scaling.max_replicas < fewest:
        problem = f"{scaling.max_replicas} is less than kubernetes.replicas, the fewest: {fewest}"
        yield Finding("kubernetes.autoscaling.max_replicas", problem, f"at least {fewest}")
    if scaling.by == "keda" and scaling.prometheus is None:
        problem = "is missing: KEDA asks Prometheus itself"
        yield Finding("kubernetes.autoscaling.prometheus", problem, "http://prometheus.monitoring:9090")
    if scaling.by == "hpa" and scaling.prometheus:
        problem = "is not used: prometheus-adapter knows where Prometheus is"
        yield Finding("kubernetes.autoscaling.prometheus", problem, "remove this line, or write by: keda")


def _parallel(role: Role, model: RecipeModel, recipe: Recipe) -> Iterator[Finding]:
    ranks, hardware = model.parallel.ranks, recipe.hardware
    if hardware.gpu != gpus.NONE and ranks > hardware.count:
        problem = f"tensor x pipeline is {ranks} ranks, one GPU each, but hardware.count is {hardware.count}"
        yield Finding(f"{role}.parallel", problem, f"write hardware: {{count: {ranks}}}, or fewer ranks")


def _precision(role: Role, model: RecipeModel, recipe: Recipe) -> Iterator[Finding]:
    quantization, backend = model.quantization, recipe.backend_of(role)
    on_tensorrt = backend in ("tensorrt_llm", "tensorrt_llm_pytorch")
    if backend in ENGINES and quantization.kv_cache == "fp8" and quantization.weights != "fp8":
        # The builder would switch paged context FMHA off, without which a target verifies nothing.
        problem = "an fp8 KV cache needs fp8 weights"
        yield Finding(f"{role}.quantization.kv_cache", problem, "write weights: fp8 too, or kv_cache: none")
    if quantization.calibration and quantization.weights != "fp8":
        yield Finding(
            f"{role}.quantization.calibration",
            "there is nothing to calibrate without fp8 weights",
            "write weights: fp8",
        )
    if on_tensorrt and model.dtype == "float32":
        # The plugin falls back to unfused attention (attentionOp.cpp), which reads no cached prefix.
        problem = "TensorRT-LLM has no paged context FMHA for float32, which speculation needs"
        yield Finding(f"{role}.dtype", problem, "write float16, bfloat16 or auto, or backend: torch")
    gpu = gpus.GPUS.get(recipe.hardware.gpu)
    if on_tensorrt and gpu and quantization.weights == "fp8" and not gpu.fp8:
        problem = f"{gpu.label} (SM {gpu.sm}) has no FP8; it came with SM 89"
        yield Finding(
            f"{role}.quantization.weights", problem, f"write weights: {gpus.NONE}, or name another GPU"
        )
