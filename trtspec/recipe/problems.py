"""Turns pydantic's errors about a recipe into findings: key, what was found, what is allowed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from trtspec.base.findings import Finding
from trtspec.recipe import kubernetes, slurm
from trtspec.recipe.schema import Recipe
from trtspec.recipe.serving import SERVED_NAME

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
    slurm.TIME: "a time as sbatch has it, in quotes: '4:00:00', '1-12:00:00'",
    slurm.MOUNT: "two folders from the root, /from:/to, without commas",
    slurm.WORD: "text without blanks",
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
