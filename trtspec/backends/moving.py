"""Moves a recipe to another backend, and removes keys that rules refuse, with a reason for each key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.backends.table import backend_named, loads, runner_of
from trtspec.base.errors import RecipeError
from trtspec.base.findings import Finding
from trtspec.methods.any_method import WITHOUT_MODEL
from trtspec.methods.method import Method
from trtspec.methods.table import METHODS
from trtspec.recipe.edit import edit, places, value_of
from trtspec.recipe.loader import LoadedRecipe
from trtspec.recipe.schema import Recipe
from trtspec.recipe.yaml_reader import read

_METHOD, _RELEASE = "speculation.method", "engine.release"
_NEEDED = ("", "name", "target", "target.model", "draft.model", "hardware", "hardware.gpu", "engine.backend")
_LONGEST, _NAME = "speculation.max_draft_len", "serving.model_name"
_TEXTS, _TOKENS = "engine.max_seq_len", "engine.max_num_tokens"


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one key of a recipe."""

    key: str
    before: Any
    """None if the key had no value."""
    after: Any
    """None if the key has no value."""
    reason: str


@dataclass(frozen=True, slots=True)
class MovedRecipe:
    """A recipe that was moved to another backend."""

    text: str
    """The moved recipe's text, which loads."""
    recipe: Recipe
    changes: tuple[Change, ...]
    """Everything that differs from before."""


def move(before: str, loaded: LoadedRecipe, backend: str, path: Path) -> MovedRecipe:
    """Returns the recipe for another backend, to be written to `path`; comments stay where they are.

    `before` is the text of the loaded recipe. Raises RecipeError if the recipe cannot run on that backend.
    """
    recipe, text = loaded.recipe, before
    name = moved_name(recipe.name, recipe.backend, backend)
    if path.parent.resolve() != loaded.path.parent.resolve():
        text = edit(text, places(loaded, path.parent), loaded.path)
    changes = [
        Change("name", recipe.name, name, "so that both builds stand beside each other"),
        Change("engine.backend", recipe.backend, backend, "asked for"),
    ]
    text = edit(text, {change.key: change.after for change in changes}, path)
    old = read(before.encode()).values
    if image := recipe.kubernetes.image:
        text = edit(text, without("kubernetes.image", read(text.encode()).values), path)
        changes.append(Change("kubernetes.image", image, None, f"{backend} has another image"))
    words = recipe.engine.extra_args
    if words and not backend_named(backend).builds_engines:
        text = edit(text, without("engine.extra_args", read(text.encode()).values), path)
        changes.append(Change("engine.extra_args", words, None, f"{backend} has other flags"))
    try:
        text, moved, removed = settle(text, path)
    except RecipeError as error:
        findings = [loaded.problem(one.subject, one.problem, one.repair) for one in error.findings]
        raise RecipeError(loaded.path, findings) from None
    if (
        runner_of(moved.recipe).has_engine_draft(moved.recipe) != runner_of(recipe).has_engine_draft(recipe)
        and moved.recipe.written(_LONGEST) is not None
    ):
        text, moved, _ = settle(edit(text, {_LONGEST: None}, path), path)
        removed.append(Finding(_LONGEST, "the nodes of a tree are not the tokens of a chain"))
    called, is_called = (runner_of(each.recipe).served_name(each) for each in (loaded, moved))
    if called != is_called and recipe.written(_NAME) is None:
        text, moved, refused = settle(edit(text, {_NAME: called}, path), path)
        reason = refused[0].problem if refused else "clients go on by this name"
        changes.append(Change(_NAME, called, runner_of(moved.recipe).served_name(moved), reason))
    new = read(text.encode()).values
    for finding in removed:
        was, is_now = value_of(finding.subject, old), value_of(finding.subject, new)
        changes.append(Change(finding.subject, was, is_now, finding.problem))
    if "draft" in old and "draft" not in new:
        changes.append(Change("draft", value_of("draft.model", old), None, "the method has no draft model"))
    return MovedRecipe(text, moved.recipe, (*changes, *_consequences(recipe, moved.recipe)))


def moved_name(name: str, before: str, backend: str) -> str:
    """Returns the name of a recipe of another backend, with the backend at its end."""
    return f"{name.removesuffix(f'-{before}')[: 99 - len(backend)]}-{backend}"


def _consequences(before: Recipe, after: Recipe) -> Iterator[Change]:
    """Returns the consequence for the deployment of a key that stays the same, or nothing."""
    old, new = before.backend, after.backend
    was_built, is_built = (backend_named(name).builds_engines for name in (old, new))
    old_fp8, new_fp8 = backend_named(old).fp8, backend_named(new).fp8
    was, now = _lengths(before), _lengths(after)
    if was != now:
        has_none = not is_built or runner_of(after).has_engine_draft(after)
        reason = "no policy of trtspec there" if has_none else "K follows acceptance and load"
        yield Change("K", was, now, reason)
    for role, model in after.models.items():
        if model.quantization.weights == "fp8" and old_fp8 != new_fp8:
            yield Change(f"{role}.quantization.weights", "fp8", "fp8", new_fp8)
    had, has = (backend_named(name).longest_text for name in (old, new))
    if had != has and after.written(_TEXTS) is None:
        yield Change(_TEXTS, had, has, "the recipe names no length")
    had, has = (runner_of(each).num_tokens(each.hardware.gpu) for each in (before, after))
    if had != has and after.written(_TOKENS) is None:
        yield Change(_TOKENS, had, has, "the recipe names no number")
    if was_built != is_built:
        reason = "clients of OpenAI's API go on"
        if was_built:
            reason += ", and Triton's have another server to ask"
        yield Change("API", _api(old), _api(new), reason)


def _lengths(recipe: Recipe) -> str:
    speculation = recipe.speculation
    longest = speculation.num_draft_tokens or speculation.max_draft_len or speculation.largest
    if runner_of(recipe).has_engine_draft(recipe):
        own = "a tree" if speculation.method.is_head else "its own n-grams"
        return f"{own} of {longest} in every step" if longest else f"{own} in every step"
    is_built = runner_of(recipe).builds_engines
    is_fixed = not is_built or speculation.policy == "fixed" or speculation.num_draft_tokens
    if is_fixed:
        when = "at most, by the number of requests" if speculation.schedule else "in every round"
        return f"{longest} {when}" if longest else "the default, in every round"
    return f"adaptive, up to {longest}" if longest else "adaptive"


def _api(backend: str) -> str:
    is_built = backend_named(backend).builds_engines
    return "Triton's, and OpenAI's with num_draft_tokens" if is_built else "OpenAI's of the server"


def settle(text: str, path: Path) -> tuple[str, LoadedRecipe, list[Finding]]:
    """Returns a text that loads from `path`, its recipe, and a finding for each removed key.

    It also removes keys that the server lacks on a cluster, and replaces a method that the backend does not
    run by one that it runs. Raises `RecipeError` if the recipe needs a refused key.
    """
    removed: list[Finding] = []
    while True:
        loaded, findings = _loaded(text, path)
        if loaded and not findings:
            return text, loaded, removed
        if not (changes := without(findings[0].subject, read(text.encode()).values)):
            raise RecipeError(path, findings)
        text = edit(text, changes, path)
        removed.append(findings[0])


def _loaded(text: str, path: Path) -> tuple[LoadedRecipe | None, list[Finding]]:
    try:
        loaded = loads(text.encode(), path)
    except RecipeError as error:
        return None, list(error.findings)
    return loaded, list(runner_of(loaded.recipe).lacking_on_clusters(loaded.recipe))


def without(key: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the changes that remove a key; none if the recipe needs the key or lacks it.

    A release is replaced by one that runs the method, if only some releases do.
    """
    if key == _METHOD:
        return _other_method(values)
    if key == _RELEASE and (releases := _releases_with_method(values)):
        return {key: releases[0]}
    if key in _NEEDED or value_of(key, values) is None:
        return {}
    return {key: None}


def _other_method(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the changes to a method that every backend runs and that needs no other keys.

    It keeps the options that it has too.
    """
    other = METHODS.get(_kind(values), Method).gives_way_to
    if other is None:
        return {}
    changes: dict[str, Any] = {}
    if "draft" not in values or not METHODS[other].has_model:
        other = WITHOUT_MODEL[0]
        changes = {"draft": None} if "draft" in values else {}
    method = value_of(_METHOD, values)
    options = method.keys() - {"kind"} if isinstance(method, dict) else set()
    kept = options & METHODS[other].model_fields.keys()
    if not kept:
        return {_METHOD: other, **changes}
    lost = {f"{_METHOD}.{name}": None for name in sorted(options - kept)}
    return {f"{_METHOD}.kind": other, **lost, **changes}


def _releases_with_method(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the releases that run the method if not all of the backend's do, and none otherwise."""
    backend = value_of("engine.backend", values)
    cell = backend_named(backend).methods.get(_kind(values)) if backend else None
    return cell.releases if cell else ()


def _kind(values: Mapping[str, Any]) -> str:
    method = value_of(_METHOD, values)
    return str(method.get("kind") if isinstance(method, dict) else method)
