"""Reads the JSON of a body into a request; raises `ApiError` with status 400 for anything wrong."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from trtspec.gateway.openai.errors import ApiError
from trtspec.gateway.openai.parsed import read_json

_MAX_DEPTH = 100
_LONGEST_PATH = 200
R = TypeVar("R", bound=BaseModel)


def read(body: bytes, kind: type[R]) -> R:
    """Returns the request in a body; raises `ApiError` that names a wrong field."""
    content = _parse(body)
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        # Where a value may be one of several things, the deepest error is of what it was meant to be, and
        # what is too long was of the right kind.
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        first = max(errors, key=lambda one: (len(one["loc"]), one["type"] == "too_long"))
        path, problem = _path(first["loc"], content, first["type"])[:_LONGEST_PATH], first["msg"]
        if first["type"] == "extra_forbidden":
            problem = "is not a field that this server knows" + _hint(first["loc"], kind)
        problem = problem.removeprefix("Value error, ")
        message = f"{path}: {problem}" if path else problem
        raise ApiError(400, message, path or None) from None


def _parse(body: bytes) -> dict[str, Any]:
    try:
        content = read_json(body)
    except RecursionError:
        raise ApiError(400, "the JSON is nested too deeply") from None
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ApiError(400, "the body must be a JSON object")
    _check_text(content)
    return content


def _check_text(content: dict[str, Any]) -> None:
    """Refuses what is nested too deeply, and text that UTF-8 cannot hold (lone surrogates)."""
    level: list[Any] = [content]
    for _ in range(_MAX_DEPTH):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below += value.keys()
                below += value.values()
            elif isinstance(value, list):
                below += value
            elif isinstance(value, str) and not value.isascii():
                try:
                    value.encode()
                except UnicodeEncodeError:
                    raise ApiError(400, "the body has text that is not valid Unicode") from None
        if not below:
            return
        level = below
    raise ApiError(400, "the JSON is nested too deeply")


def _path(steps: Sequence[int | str], content: Any, kind: str) -> str:
    """Returns the place of an error, such as `messages[0].content`, without pydantic's names of types."""
    path, here = "", content
    for number, step in enumerate(steps, 1):
        is_missing = kind == "missing" and number == len(steps)
        if isinstance(here, dict) and isinstance(step, str) and (step in here or is_missing):
            path += f".{step}" if path else step
            here = here.get(step)
        elif isinstance(here, list) and isinstance(step, int) and step < len(here):
            path += f"[{step}]"
            here = here[step]
    return path


def _hint(steps: Sequence[int | str], kind: type[BaseModel]) -> str:
    """Returns the field that was meant by the last step, of the model that the steps before it lead to."""
    models: list[Any] = [kind]
    for step in steps[:-1]:
        models = [one for model in models for one in _models(model.model_fields.get(step))] or models
    nearest = get_close_matches(str(steps[-1]), [name for one in models for name in one.model_fields], n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def _models(part: Any) -> list[Any]:
    part = getattr(part, "annotation", part)
    is_model = isinstance(part, type) and issubclass(part, BaseModel)
    return [part] if is_model else [model for inner in get_args(part) for model in _models(inner)]
