"""Rules between the keys of a recipe whose engines trtspec builds; pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from trtspec.backends.built.build_rules import build_contradictions
from trtspec.base.findings import Finding
from trtspec.methods.method import AT_ONCE
from trtspec.recipe import devices, gpus
from trtspec.recipe.build_options import option_problem
from trtspec.recipe.schema import Recipe, RecipeModel
from trtspec.recipe.serving import BLS_MODELS

_DEVICE = "draft.device"


def contradictions(recipe: Recipe) -> Iterator[Finding]:
    """Finds contradictions between keys that only engines and trtspec's coordinator have."""
    if recipe.written(AT_ONCE):
        problem = f"{recipe.backend} has no such thing: its draft models propose one token per step"
        yield Finding(AT_ONCE, problem, "remove this line")
    for key in ("engine.extra_args", "engine.environment"):
        if recipe.written(key):
            problem = (
                f"{recipe.backend} is served by trtspec itself; these are for vLLM, SGLang and trtllm-serve"
            )
            yield Finding(key, problem, "remove this line")
    yield from _serving(recipe)
    yield from _times(recipe)
    yield from _device(recipe)
    for role, model in recipe.models.items():
        yield from _build_options(role, model, recipe)


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


def _build_options(role: str, model: RecipeModel, recipe: Recipe) -> Iterator[Finding]:
    """Finds options with a value that no recipe may have. If there are none, it finds those that this recipe
    may not have."""
    flaws = [option_problem(option, value) for option, value in model.build.items()]
    for flaw in list(filter(None, flaws)) or build_contradictions(model, recipe):
        yield replace(flaw, subject=f"{role}.build.{flaw.subject}")
