"""Reads a tool's flags for drafts, which say a recipe's method, draft and K only together."""

from __future__ import annotations

from trtspec.methods.table import METHODS
from trtspec.recipe.migration.reading import FlagReading
from trtspec.serving.drafters.source import DRAFT_MODEL

METHOD, MODEL, LENGTH = "speculation.method", "draft.model", "speculation.max_draft_len"
SCHEDULE, STOP = "speculation.schedule", "the number of requests from which nothing is drafted"


def draft_reading(reading: FlagReading) -> FlagReading:
    """Returns a reading for the flags on drafts of a command, until `carry`; it has the command's notes."""
    return FlagReading(reading.tool, notes=reading.notes, missing=reading.missing)


def carry(drafts: FlagReading, reading: FlagReading) -> None:
    """Takes the keys on drafts for the recipe. If no recipe has the method, it notes all flags as lost."""
    values, origins = drafts.values, drafts.origins
    if not values:
        return
    longest = values.get(LENGTH)
    if (stop := values.pop(STOP, None)) and longest:
        drafts.set(SCHEDULE, {1: longest, stop: 0}, origins[STOP])
    elif stop:
        drafts.miss(origins[STOP], "the command says no number of draft tokens for fewer")
    if SCHEDULE in values and longest:
        values[SCHEDULE] = {least: min(length, longest) for least, length in values[SCHEDULE].items()}
    model: str = values.get(MODEL, "")
    method: str = values.get(METHOD) or (_by_name(model) if model else "")
    if problem := _problem(method, model):
        for flag in dict.fromkeys(origins.values()):
            reading.miss(flag, problem)
        return
    reading.set(METHOD, method, origins.get(METHOD) or origins[MODEL])
    has_model, options = METHODS[method].has_model, METHODS[method].model_fields
    for key, value in values.items():
        section, _, last = key.rpartition(".")
        if section == METHOD and last not in options:
            tell = reading.miss if value is True else reading.lose
            tell(origins[key], f"{method} has no {last}")
        elif key == MODEL and not has_model:
            if value and value != reading.values.get("target.model"):
                reading.miss(origins[key], f"{method} has no draft model")
        elif section.startswith("draft") and not has_model:
            reading.lose(origins[key], f"{method} has no draft model")
        elif key != METHOD:
            reading.set(key, value, origins[key])


def _problem(method: str, model: str) -> str | None:
    if not method:
        return "it names no source of drafts"
    if method not in METHODS:
        return f"a recipe has no method {method}; it has {', '.join(METHODS)}"
    if METHODS[method].has_model and not model:
        return f"{method} needs a model, and the command names none"
    return None


def _by_name(model: str) -> str:
    """Returns the method that a model is for, by its name."""
    lower = model.lower().replace("eagle-3", "eagle3")
    heads = (name for name, method in METHODS.items() if method.is_head and method.has_model)
    return next((name for name in heads if name in lower), DRAFT_MODEL.kind)
