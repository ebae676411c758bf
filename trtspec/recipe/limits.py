"""Rules between the keys of one valid recipe. They are pure: the models are not looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from trtspec.backends.backend import Backend
from trtspec.base.findings import Finding
from trtspec.base.roles import Role
from trtspec.recipe import gpus
from trtspec.recipe.layers import AUTO, LayerSearch
from trtspec.recipe.schema import NOT_OF_HEADS, OF_TARGET, Draft, Recipe, RecipeModel

_TOKENS_PER_BLOCK = 32


def contradictions(recipe: Recipe) -> Iterator[Finding]:
    """Finds keys of the recipe that contradict each other; each subject is the dotted key to change."""
    backend = recipe.runner
    yield from _backend(backend, recipe)
    yield from contradictions_of_any_backend(recipe)
    yield from backend.contradictions(recipe)
    for role, runner in recipe.runners.items():
        yield from _precision(role, runner, recipe)


def lacking(recipe: Recipe, reasons: Mapping[str, str]) -> Iterator[Finding]:
    """Finds the keys that a recipe writes and its backend has not; `reasons` says what it does instead."""
    for key, reason in reasons.items():
        value = recipe.written(key)
        # What is off or empty asks for nothing, but a number does even if it is 0.
        if value or type(value) in (int, float):
            yield Finding(key, f"{recipe.backend} has no such thing: {reason}", "remove this line")


def contradictions_of_any_backend(recipe: Recipe) -> Iterator[Finding]:
    """Finds what no backend takes."""
    yield from _draft(recipe)
    yield from _layers(recipe)
    yield from _head(recipe)
    yield from _draft_length(recipe)
    yield from _lengths(recipe)
    yield from _kubernetes(recipe)
    for role, model in recipe.models.items():
        yield from _parallel(role, model, recipe)


def _backend(backend: Backend, recipe: Recipe) -> Iterator[Finding]:
    """Finds a method that the backend or its release does not run, an unknown release, and a missing GPU."""
    version, method = recipe.engine.release, recipe.speculation.method.kind
    flaw = backend.release_flaw(version) if version else None
    if flaw:
        yield Finding("engine.release", *flaw)
    found = backend.refusal(method, version)
    if found and not found.releases:
        problem = f"{backend.name} does not run {method}: {found.reason}"
        yield Finding("speculation.method", problem, "write another method, or another engine.backend")
    elif found and not flaw:
        problem = f"{backend.name} {version or backend.versions[0]} does not run {method}: {found.reason}"
        yield Finding("engine.release", problem, f"write release: {found.releases[0]}, or another method")
    if recipe.hardware.gpu == gpus.NONE and backend.needs_gpu:
        problem = f"gpu is none, but {backend.needs_gpu}"
        yield Finding("engine.backend", problem, "write backend: torch, or name a GPU in hardware.gpu")


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
        problem = f"the server waits for no draft: speculation.method is {method.kind}"
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
    if draft is None or not method.is_head or not recipe.runner.builds_engines:
        return
    usual = Draft(model=draft.model)
    for key in NOT_OF_HEADS:
        if getattr(draft, key) != getattr(usual, key):
            problem = f"a head runs in its target's engine, as the target does: method is {method.kind}"
            yield Finding(f"draft.{key}", problem, "remove this line")


def _lengths(recipe: Recipe) -> Iterator[Finding]:
    engine, longest_draft = recipe.engine, recipe.speculation.max_draft_len
    prompt, text, step = engine.max_input_len, engine.max_seq_len, engine.max_num_tokens
    if prompt and text and prompt >= text:
        problem = f"{prompt} leaves no room for an answer: max_seq_len, prompt and answer together, is {text}"
        yield Finding("engine.max_input_len", problem, f"at most {text - 1}")
    if longest_draft and text and longest_draft >= text:
        problem = f"a draft of {longest_draft} tokens never fits into max_seq_len, which is {text}"
        yield Finding("speculation.max_draft_len", problem, f"at most {text - 1}")
    if longest_draft and recipe.speculation.largest > longest_draft:
        yield Finding("speculation.schedule", "has more than max_draft_len", f"at most {longest_draft}")
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


def _kubernetes(recipe: Recipe) -> Iterator[Finding]:
    if hosts := recipe.kubernetes.hosts:
        count, each = recipe.hardware.count, hosts.gpus_per_host
        if recipe.hardware.gpu == gpus.NONE or count <= each or count % each:
            problem = f"the engines span no such hosts: hardware has {count} x {recipe.hardware.gpu}"
            yield Finding("kubernetes.hosts.gpus_per_host", problem, "remove this section, or correct it")
        if recipe.kubernetes.form == "kserve":
            problem = "KServe cannot make groups of pods for your own runtime"
            yield Finding("kubernetes.form", problem, "write form: deployment, or remove kubernetes.hosts")
    if recipe.kubernetes.secrets.hub and recipe.runner.builds_engines:
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


def _precision(role: Role, backend: Backend, recipe: Recipe) -> Iterator[Finding]:
    model = recipe.models[role]
    quantization = model.quantization
    if backend.builds_engines and quantization.kv_cache == "fp8" and quantization.weights != "fp8":
        # The builder would switch paged context FMHA off, without which a target verifies nothing.
        problem = "an fp8 KV cache needs fp8 weights"
        yield Finding(f"{role}.quantization.kv_cache", problem, "write weights: fp8 too, or kv_cache: none")
    if quantization.calibration and quantization.weights != "fp8":
        yield Finding(
            f"{role}.quantization.calibration",
            "there is nothing to calibrate without fp8 weights",
            "write weights: fp8",
        )
    if backend.float32_flaw and model.dtype == "float32":
        repair = "write float16, bfloat16 or auto, or backend: torch"
        yield Finding(f"{role}.dtype", backend.float32_flaw, repair)
    gpu = gpus.GPUS.get(recipe.hardware.gpu)
    if not backend.emulates_fp8 and gpu and quantization.weights == "fp8" and not gpu.fp8:
        problem = f"{gpu.label} (SM {gpu.sm}) has no FP8; it came with SM 89"
        yield Finding(
            f"{role}.quantization.weights", problem, f"write weights: {gpus.NONE}, or name another GPU"
        )
