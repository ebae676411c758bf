"""Reads a recipe file into a `LoadedRecipe`, or raises one error with everything that is wrong in it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from trtspec.base.errors import RecipeError
from trtspec.base.findings import Finding
from trtspec.base.roles import Role
from trtspec.recipe import gpus, kubernetes, schema
from trtspec.recipe.backends import NAMES
from trtspec.recipe.schema import AUTO, OF_TARGET, SERVED_NAME, LayerSearch, Recipe, RecipeModel
from trtspec.recipe.yaml_reader import MAX_BYTES, Unreadable, read

_TOKENS_PER_BLOCK = 32


def lacking(recipe: Recipe, reasons: Mapping[str, str]) -> Iterator[Finding]:
    """Finds the keys that a recipe writes and its backend has not; `reasons` says what it does instead."""
    for key, reason in reasons.items():
        value = recipe.written(key)
        # What is off or empty asks for nothing, but a number does even if it is 0.
        if value or type(value) in (int, float):
            yield Finding(key, f"{recipe.backend} has no such thing: {reason}", "remove this line")


def contradictions(recipe: Recipe) -> Iterator[Finding]:
    """Finds keys of the recipe that contradict each other, whatever the backend.

    Each subject is the dotted key to change.
    """
    yield from _draft(recipe)
    yield from _layers(recipe)
    yield from _draft_length(recipe)
    yield from _lengths(recipe)
    yield from _kubernetes(recipe)
    for role, model in recipe.models.items():
        yield from _parallel(role, model, recipe)


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


_LOWER = "lower-case letters, digits and, between these, dashes"
_REST = "digits, and after the first of these dots, dashes"
_PATTERNS = {
    r"^[a-z0-9][a-z0-9._-]*$": f"lower-case letters, {_REST} and underscores",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "letters, digits and underscores, no digit first",
    SERVED_NAME: f"letters, {_REST}, underscores and single slashes",
    kubernetes.LABEL: _LOWER,
    kubernetes.SERVICE: f"at most 40 {_LOWER}, a letter first",
    kubernetes.NAME: f"{_LOWER} and dots",
    kubernetes.HOST: f"a host name of {_LOWER} and dots, or of *. and one",
    kubernetes.KEY: "the key of a label: a name, and before it, with a slash, a domain",
    kubernetes.VALUE: "letters, digits and, between these, dots, dashes and underscores",
    kubernetes.QUANTITY: "a quantity: 500m, 2, 64Gi",
    kubernetes.FOLDER: "a folder from the root, with plain names",
    schema.SLURM_TIME: "a time as sbatch has it, in quotes: '4:00:00', '1-12:00:00'",
    schema.SLURM_MOUNT: "two folders from the root, /from:/to, without commas",
    schema.SLURM_WORD: "text without blanks",
}
# Keys whose sections have the options of a command.
_OPTIONS = {
    "build": "trtllm-build, for example disable,",
    "options": "sbatch",
    "gpu_options": "sbatch",
}
_WANTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "model_type": "a section of keys",
    "dict_type": "a section of keys",
    "list_type": "a list",
}
_SCIENTIFIC = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+\Z")


def problems_of(error: ValidationError, written: Mapping[str, str]) -> list[Finding]:
    """Returns one finding for each key, even if pydantic reports one for each type that the key may have.

    `written` has the text of each scalar that is not quoted, by its key.
    """
    found: dict[str, Finding] = {}
    for entry in error.errors(include_url=False):
        place = list(map(str, entry["loc"]))
        path = _path(place)
        options = next((name for name in _OPTIONS if name in path[:-1]), None)
        if options:
            path = path[: path.index(options) + 2]
        key = ".".join(path)
        if key in found:
            continue
        if options and entry["type"] != "value_error":
            problem, repair = _option(entry["input"], _OPTIONS[options])
        else:
            problem, repair = _explain(entry, place, written.get(key))
        found[key] = Finding(key, problem, repair)
    return list(found.values())


def _path(place: list[str]) -> list[str]:
    """The keys alone: behind a key of several kinds pydantic names the kind that it took.

    Behind a key that is itself not allowed it says so.
    """
    return [part for number, part in enumerate(place) if not _kinds(place[:number]) and part != "[key]"]


def _explain(entry: Mapping[str, Any], place: list[str], written: str | None) -> tuple[str, str | None]:
    """Returns the problem and its repair; `place` is where pydantic found it, `written` as in `_retype`."""
    kind, value, context = entry["type"], entry["input"], entry.get("ctx", {})
    if kind == "extra_forbidden":
        return "unknown key", _nearest_key(place)
    if kind == "missing":
        return f"is missing: {_description(place)}", None
    if kind == "value_error":
        problem, repair = (*context["error"].args, None)[:2]
        return problem, repair
    if kind in _WANTED:
        problem = "has no value" if value is None else f"found {_found(value)}"
        return f"{problem}, but {_WANTED[kind]} is wanted", _retype(kind, value, written)
    if kinds := _kinds(place):
        return _kind_problem(value, kinds)
    if kind == "literal_error":
        allowed = re.findall(r"'([^']*)'", context["expected"]) or [context["expected"]]
        return f"found {_found(value)}; allowed: {', '.join(allowed)}", _did_you_mean(value, allowed)
    if kind in ("greater_than_equal", "less_than_equal"):
        bound = f"at least {context['ge']}" if "ge" in context else f"at most {context['le']}"
        return f"found {value}; it must be {bound}", None
    if kind == "string_too_short":
        return "is empty", None
    if kind == "string_too_long":
        return f"is longer than {context['max_length']} characters", None
    if kind == "string_pattern_mismatch":
        letters = _PATTERNS.get(context["pattern"], "text without control characters")
        return f"found {value!r:.80}; allowed: {letters}", None
    return str(entry["msg"]), None


def _kind_problem(value: Any, kinds: list[str]) -> tuple[str, str | None]:
    """Returns the problem of a key of several kinds whose value names none of them."""
    allowed = f"allowed: {', '.join(kinds)}"
    if isinstance(value, dict) and "kind" not in value:
        return f"has no kind; {allowed}", "write kind: and one of these names"
    named = value["kind"] if isinstance(value, dict) else value
    problem = "has no value" if named is None else f"found {_found(named)}"
    return f"{problem}; {allowed}", _did_you_mean(named, kinds)


def _did_you_mean(value: Any, allowed: list[str]) -> str | None:
    near = get_close_matches(str(value).lower(), allowed, n=1)
    return f"did you mean {near[0]}?" if near else None


def _option(value: Any, command: str) -> tuple[str, str | None]:
    if value is None:
        return "has no value", f"write what {command} takes"
    return f"found {_found(value)}, but one text, number, true or false is wanted", None


def _found(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a section of keys"
    if isinstance(value, list):
        return "a list"
    return f"the text {value[:60]!r}" if isinstance(value, str) else f"the number {value}"


def _retype(kind: str, value: Any, written: str | None) -> str | None:
    """The repair for a scalar that YAML read as another type than was meant; None if there is none.

    `written` is the scalar as it stands in the file; None for a quoted one.
    """
    if kind == "string_type" and written is not None and isinstance(value, (bool, int, float)):
        return f'put it in quotes: "{written}"'
    if kind == "int_type" and isinstance(value, str):
        if written is None and value.strip().isdigit():
            return f"remove the quotes: {value.strip()}"
        if written is not None and _SCIENTIFIC.match(written):
            return f"YAML 1.1 reads {written} as text; write the digits out"
    if kind == "int_type" and isinstance(value, float) and value.is_integer():
        return f"write {value:.0f}"
    return None


def _nearest_key(place: list[str]) -> str:
    """A repair that names the nearest key of the same section, or else the section that has this very key."""
    *parents, name = place
    section = _section(parents)
    known = list(section.model_fields) if section else []
    near = get_close_matches(name.lower().replace("-", "_"), known, n=1)
    if near:
        return f"did you mean {near[0]}?"
    elsewhere = [other for other, model in _sections(Recipe, "") if name in model.model_fields]
    if elsewhere:
        return "it belongs " + " or ".join(map(_named, elsewhere))
    return f"known keys here: {', '.join(known)}"


def _named(place: str) -> str:
    """A section in words: speculation.method.ngram is one kind of speculation.method."""
    *parents, last = place.split(".")
    if last in _kinds(parents):
        return f"in {'.'.join(parents)} of kind {last}"
    return f"in {place}" if place else "at the top level"


def _description(place: list[str]) -> str:
    section = _section(place[:-1])
    return (section.model_fields[place[-1]].description or "") if section else ""


def _section(place: list[str]) -> type[BaseModel] | None:
    return dict(_sections(Recipe, "")).get(".".join(place))


def _kinds(place: list[str]) -> list[str]:
    """The names of the kinds that the key at this place has; none for a key of one kind."""
    section = _section(place[:-1]) if place else None
    field = section.model_fields.get(place[-1]) if section else None
    return [name for name, _ in _members(field)] if field and field.discriminator else []


def _sections(model: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """Every section of the schema with its dotted key, which ends with the kind where there are several."""
    yield path, model
    for name, field in model.model_fields.items():
        for kind, section in _members(field):
            yield from _sections(section, ".".join(filter(None, (path, name, kind))))


def _members(field: FieldInfo) -> Iterator[tuple[str, type[BaseModel]]]:
    """The sections that a key may have, each with its name among several kinds, or else an empty one."""
    for section in (field.annotation, *get_args(field.annotation)):
        if isinstance(section, type) and issubclass(section, BaseModel):
            tag = section.model_fields[str(field.discriminator)] if field.discriminator else None
            yield get_args(tag.annotation)[0] if tag else "", section


_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?\Z")


@dataclass(frozen=True, slots=True)
class LoadedRecipe:
    """A valid recipe and its file."""

    recipe: Recipe
    """The recipe, of the backend `asked` if there is one."""
    path: Path
    lines: Mapping[str, int]
    """The 1-based line of each dotted key of the file."""
    digest: str
    """The digest of the file's recipe, even where `asked` names another backend."""
    asked: str | None = None
    """The backend that a flag or the environment names instead of the recipe's own, if one does."""

    def __repr__(self) -> str:
        return f"<LoadedRecipe {self.recipe.name}: {self.path}>"

    def on(self, backend: str | None) -> LoadedRecipe:
        """Returns the recipe for the backend that a flag or the environment names, if one does.

        Raises RecipeError for a name that is none.
        """
        if backend is not None and backend not in NAMES:
            problem = self.problem("engine.backend", f"found {backend!r:.80}", f"use {' or '.join(NAMES)}")
            raise RecipeError(self.path, [problem])
        if not backend or backend == self.recipe.backend:
            return self
        return replace(self, recipe=self.recipe.on(backend), asked=backend)

    def check(self, findings: Iterable[Finding]) -> None:
        """Raises RecipeError for these findings, and for models that are not named as they must be."""
        if found := [with_line(one, self.lines) for one in (*findings, *_misplaced(self))]:
            raise RecipeError(self.path, found)

    def problem(self, key: str, problem: str, repair: str | None = None) -> Finding:
        """A finding at a dotted key, with the line of the key or of the section that should have it."""
        return with_line(Finding(key, problem, repair), self.lines)

    @property
    def locations(self) -> dict[Role, Path | str]:
        """The models' folders, which may not exist, or their Hub ids.

        A folder is what exists relative to the recipe's folder, or what starts with `./`, `../`, `/` or `~`.
        """
        models, folder = self.recipe.models, self.path.parent
        return {role: model_location(model.model, folder) for role, model in models.items()}


def model_location(value: str, folder: Path) -> Path | str:
    """Returns the folder, or the Hub id, of a model of this name; `folder` is the recipe's."""
    path = Path(os.path.normpath(folder / os.path.expanduser(value)))
    if value.startswith((".", "/", "~")) or path.is_dir():
        return path
    return value


def parse(path: Path) -> LoadedRecipe:
    """Reads a recipe by the schema alone, without the rules between its keys; raises RecipeError."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        problem = Finding("", "no such file", f"`trtspec init {path}` writes a starter recipe")
        raise RecipeError(path, [problem]) from None
    except OSError as error:
        raise RecipeError(path, [Finding("", f"cannot be read: {error.strerror}")]) from None
    return parsed(data, path)


def parsed(data: bytes, path: Path) -> LoadedRecipe:
    """Reads what a recipe at `path` would say, as `parse` does."""
    try:
        document = read(data)
    except Unreadable as error:
        raise RecipeError(path, error.findings) from None
    findings, recipe = list(document.findings), None
    try:
        recipe = Recipe.model_validate(document.values)
    except ValidationError as error:
        # A value that the reader refused is None here; pydantic would complain about it a second time.
        told = {finding.subject for finding in findings}
        problems = (found for found in problems_of(error, document.written) if found.subject not in told)
        findings += [with_line(found, document.lines) for found in problems]
    if recipe is None or findings:
        raise RecipeError(path, findings)
    return LoadedRecipe(recipe, path, document.lines, recipe.digest)


def _misplaced(loaded: LoadedRecipe) -> Iterator[Finding]:
    """Finds models that are neither a folder nor on the Hub, and revisions of folders."""
    for role, location in loaded.locations.items():
        if isinstance(location, str) and not _HUB_ID.match(location):
            problem = f"found {location!r:.80}, which is neither a folder nor a Hub id"
            yield Finding(f"{role}.model", problem, "write owner/name, or ./folder")
        if isinstance(location, Path) and loaded.recipe.models[role].revision:
            problem = "a folder has no revisions; only a Hub model has"
            yield Finding(f"{role}.revision", problem, "remove this line")


def with_line(found: Finding, lines: Mapping[str, int]) -> Finding:
    """Returns a finding with the line of its key, or of the nearest section around it that the file has."""
    key = found.subject
    while key and key not in lines:
        key = key.rpartition(".")[0]
    return replace(found, line=lines.get(key))
