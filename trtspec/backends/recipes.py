"""Recipes together with their backends: a recipe alone knows only a backend's name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from trtspec.backends.backend import Backend
from trtspec.backends.table import runners_of
from trtspec.base.findings import Finding
from trtspec.base.roles import Role
from trtspec.recipe import gpus, loader
from trtspec.recipe.loader import LoadedRecipe, parse, parsed
from trtspec.recipe.schema import NOT_OF_HEADS, Draft, Recipe


def load(path: str | Path, backend: str | None = None) -> LoadedRecipe:
    """Reads and validates a recipe; raises RecipeError with every problem found. It is `trtspec.load_recipe`.

    `backend` is the one that a flag or the environment names instead of the recipe's own; then its rules
    apply.
    """
    return _judged(parse(Path(path)).on(backend))


def loads(data: bytes, path: Path) -> LoadedRecipe:
    """Validates what a recipe at `path` would say; raises RecipeError with every problem found."""
    return _judged(parsed(data, path))


def _judged(loaded: LoadedRecipe) -> LoadedRecipe:
    findings = contradictions(loaded.recipe, is_asked=loaded.asked is not None)
    if loaded.asked:
        move = f"trtspec migrate {loaded.path} --to {loaded.asked} writes a recipe for it"
        repairs = {"engine.backend": "name a GPU in hardware.gpu, or another backend"}
        findings = (replace(found, repair=repairs.get(found.subject, move)) for found in findings)
    loaded.check(findings)
    return loaded


def contradictions(recipe: Recipe, *, is_asked: bool = False) -> Iterator[Finding]:
    """Finds keys of the recipe that contradict each other, or that its backend does not have.

    Each subject is the dotted key to change. A backend that takes any recipe ignores the keys of others, if
    it `is_asked` for in place of the recipe's own.
    """
    runners = runners_of(recipe)
    backend = runners[Role.TARGET]
    is_strict = not (is_asked and backend.takes_any_recipe)
    if is_strict:
        yield from _backend(backend, recipe)
    yield from loader.contradictions(recipe)
    if backend.builds_engines:
        yield from _head(recipe)
        if recipe.kubernetes.secrets.hub:
            problem = "pods pull engines from the store, and nothing from the Hub"
            repair = "remove this line; jobs have kubernetes.build.secret"
            yield Finding("kubernetes.secrets.hub", problem, repair)
    if is_strict:
        yield from backend.contradictions(recipe)
        for role, runner in runners.items():
            yield from _precision(role, runner, recipe)


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


def _head(recipe: Recipe) -> Iterator[Finding]:
    """Finds what a head cannot have of its own, since it runs in its target's engine."""
    draft, method = recipe.draft, recipe.speculation.method
    if draft is None or not method.is_head:
        return
    usual = Draft(model=draft.model)
    for key in NOT_OF_HEADS:
        if getattr(draft, key) != getattr(usual, key):
            problem = f"a head runs in its target's engine, as the target does: method is {method.kind}"
            yield Finding(f"draft.{key}", problem, "remove this line")


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
