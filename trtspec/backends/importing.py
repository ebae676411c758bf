"""Makes a recipe of a server's command line, or of the command lines that build a pair of engines."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from trtspec.backends.moving import Change, move, settle
from trtspec.backends.table import backend_named, backends, runner_of
from trtspec.base.errors import TrtspecError
from trtspec.methods.any_method import WITHOUT_MODEL
from trtspec.methods.table import METHODS
from trtspec.recipe import gpus
from trtspec.recipe.edit import flow
from trtspec.recipe.loader import LoadedRecipe
from trtspec.recipe.migration.command import OwnFlags
from trtspec.recipe.migration.reading import FlagNote, FlagReading
from trtspec.recipe.migration.script import Script, containers_in, read_script
from trtspec.recipe.migration.tool import MigrationTool, outside, read_prefix, tell_longer
from trtspec.recipe.schema import Recipe

_COLUMN = 44
_DEFAULT_GPU = "h100"
_SPECULATION = (
    "speculation.method",
    "speculation.max_draft_len",
    "speculation.schedule",
    "draft",
    "draft.model",
)
"""The keys without which the drafts would differ from those of the command."""
_BATCH, _TOKENS, _SERVED = "engine.max_batch_size", "engine.max_num_tokens", "serving.model_name"
_SECRET = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Imported:
    """A recipe that was made from a command."""

    text: str
    """The recipe's text, which loads."""
    notes: tuple[FlagNote, ...]
    """The notes on the command, a line each."""
    missing: tuple[FlagNote, ...]
    """The notes on speculation that the command asks for and the recipe lacks."""


def recipe_of(
    command: str,
    path: Path,
    *,
    gpu: str | None = None,
    draft: str | None = None,
    backend: str | None = None,
    container: str | None = None,
    ask: Callable[[MigrationTool], OwnFlags] = lambda _: {},
) -> Imported:
    """Returns the recipe of a command, of several in one text, or of a manifest, for `path`.

    `gpu` and `draft` add what a command lacks, `backend` replaces its own, `container` is a manifest's.
    `ask` asks a tool's own parser for its flags. Raises TrtspecError for a text without a known command, and
    RecipeError if no recipe can be made of it.
    """
    tools = tuple(tool for each in backends() for tool in each.tools())
    found, called = list[MigrationTool](), ""
    script = _script(command, container, tools)
    reading = FlagReading("", {"hardware.count": script.gpus}, files=script.files)
    for words in script.commands:
        if begun := _begun(words, tools):
            tool, first, own = begun
            if found and not (tool.is_part and found[-1].is_part):
                problem = f"is two servers, of {found[-1].name} and of {tool.name}"
                raise TrtspecError("the command", problem, "give one at a time")
            reading.tool, reading.own_flags = tool.name, ask(tool)
            for name, value in script.exported.items():
                if f"${name}" not in command and f"${{{name}" not in command:
                    reading.pass_variable(name, value)
            read_prefix(words[:first], reading)
            tool.read(words[own:], reading)
            tell_longer(tool, reading)
            called = str(reading.values.get(_SERVED) or reading.values.get("target.model"))
            outside(words[:own], reading)
            found.append(tool)
        else:
            reading.lose(_shown(words[0]), "trtspec reads no such command")
    if not found:
        names = ", ".join(tool.name for tool in tools)
        problem = f"is no command of {names}"
        raise TrtspecError("the command", problem, "trtspec init --from 'vllm serve MODEL …'")
    for tool in tools:
        if tool.finish:
            tool.finish(reading)
    text, loaded = _recipe(found[-1], reading, path, gpu, draft)
    if not found[-1].is_part:
        _tell_name(called, reading, loaded)
    if backend and backend != loaded.recipe.backend:
        moved = move(text, loaded, backend, path)
        text = moved.text
        for change in moved.changes:
            _tell_change(change, reading)
        for flag in reading.of_drafts:
            reading.miss(flag, f"{backend} has no such flag")
    text = _commented(text, reading)
    told = dict.fromkeys(reading.notes)
    return Imported(text, tuple(told), tuple(note for note in told if note in reading.missing))


def _script(text: str, container: str | None, tools: Sequence[MigrationTool]) -> Script:
    """Returns the script of a text, or of the one container with a server in a manifest, or the named one."""
    found = containers_in(text)
    if found is None and container is None:
        return read_script(text)
    served = {name: one for name, one in (found or {}).items() if any(_begun(w, tools) for w in one.commands)}
    asked = [name for name in served if container in (None, name, *name.split("/"))]
    if len(asked) == 1:
        return served[asked[0]]
    if not served:
        problem = f"has no container of {', '.join(tool.name for tool in tools)}"
        raise TrtspecError("the manifest", problem, f"it has {', '.join(found or ()) or 'none'}")
    problem = "has several servers" if asked else f"has no server {container}"
    raise TrtspecError("the manifest", problem, f"choose one with --container: {', '.join(asked or served)}")


def _begun(words: Sequence[str], tools: Sequence[MigrationTool]) -> tuple[MigrationTool, int, int] | None:
    for tool in tools:
        if place := tool.begins(words):
            return tool, *place
    return None


def _recipe(
    tool: MigrationTool, reading: FlagReading, path: Path, gpu: str | None, draft: str | None
) -> tuple[str, LoadedRecipe]:
    values = reading.values
    if "target.model" not in values:
        raise TrtspecError("the command", "names no model", f"give the whole line of {tool.name}")
    values.setdefault("engine.backend", tool.backend)
    values["hardware.gpu"] = gpu or _DEFAULT_GPU
    if gpu is None:
        reading.say("hardware.gpu", f"no command says it: {_DEFAULT_GPU} is assumed, --gpu names another")
    if (count := max(_ranks(values), values.pop("hardware.count"))) > 1 and gpu != gpus.NONE:
        values["hardware.count"] = count
    values["name"] = _name(str(values["target.model"]))
    _draft(draft, reading)
    if _BATCH not in values and tool.serves:
        reading.say(_BATCH, f"not in the command: {tool.name} serves {tool.serves}, a recipe 16 if left out")
    _tell_num_tokens(tool, reading)
    for role in ("target", "draft"):
        if values.get(key := f"{role}.quantization.weights") == "fp8":
            reading.say(key, backend_named(str(values["engine.backend"])).fp8)
    text = _recipe_text(values, reading.origins, f"From a command of {tool.name}.")
    text, loaded, removed = settle(text, path)
    text = text.replace("\n\n\n", "\n\n")  # A section that went has left its empty line.
    for finding in removed:
        for key, flag in reading.origins.items():
            if key == finding.subject or key.startswith(f"{finding.subject}."):
                is_less = finding.subject in _SPECULATION
                (reading.miss if is_less else reading.lose)(flag, finding.problem)
                if key == "speculation.method":
                    _tell_draft(reading)
        if finding.subject == "engine.release":
            reading.say(finding.subject, f"{loaded.recipe.engine.release}, since {finding.problem}")
    return text, loaded


def _tell_num_tokens(tool: MigrationTool, reading: FlagReading) -> None:
    """Writes the size of an iteration if the command's server has another default than a recipe."""
    if _TOKENS in reading.values or tool.num_tokens is None:
        return
    gpu = str(reading.values["hardware.gpu"])
    theirs = f"{tool.num_tokens(gpus.GPUS.get(gpu)):,}"
    ours = backend_named(str(reading.values["engine.backend"])).num_tokens(gpu)
    if theirs != ours:
        reading.say(_TOKENS, f"not in the command: by default {tool.name} has {theirs}, a recipe {ours}")


def _tell_name(called: str, reading: FlagReading, loaded: LoadedRecipe) -> None:
    """Writes the model's name for clients if the command's server has another default."""
    now = runner_of(loaded.recipe).served_name(loaded)
    if now not in (called, PurePosixPath(called).name):
        reading.say(_SERVED, f"clients call the model {now}, where the command's server has {called}")


def _draft(draft: str | None, reading: FlagReading) -> None:
    """Writes the caller's draft; without one, the text itself proposes."""
    values = reading.values
    method = str(values.get("speculation.method", ""))
    if draft is not None:
        if method == WITHOUT_MODEL[0]:
            _drop(reading, "speculation.method", "a draft model is named beside it")
        values["draft.model"] = draft
    elif not method:
        _drop(reading, "draft", "there is no draft model")
        values["speculation.method"] = WITHOUT_MODEL[0]
        fate = "the command names no draft: the text itself proposes; --draft MODEL names a small model"
        reading.say("speculation.method", fate)
    elif not METHODS[method].has_model:
        _drop(reading, "draft", f"{method} has no draft model")


def _drop(reading: FlagReading, section: str, reason: str) -> None:
    for key in [key for key in reading.values if key == section or key.startswith(f"{section}.")]:
        del reading.values[key]
        if flag := reading.origins.pop(key, None):
            reading.lose(flag, reason)


def _tell_draft(reading: FlagReading) -> None:
    """Notes that a draft is removed together with its method, which the backend does not run."""
    for key, flag in reading.origins.items():
        if key.startswith("draft."):
            reading.lose(flag, "it goes with its method; the text itself proposes instead")


def _ranks(values: Mapping[str, Any]) -> int:
    ranks = [1]
    for role in ("target", "draft"):
        sizes = [values.get(f"{role}.parallel.{kind}", 1) for kind in ("tensor", "pipeline")]
        ranks.append(sizes[0] * sizes[1])
    server = backend_named(str(values["engine.backend"]))
    return max(ranks) * server.data_ranks(values.get("engine.extra_args", ()))


def _name(model: str) -> str:
    last = model.rstrip("/").rpartition("/")[2].lower()
    return re.sub(r"[^a-z0-9._-]+", "-", last).strip("._-")[:100] or "recipe"


def _shown(word: str) -> str:
    return _SECRET.sub("?", word)[:40]


def _commented(text: str, reading: FlagReading) -> str:
    """Returns the text without the comment on a method that was replaced by another."""
    flag, method = reading.origins.get("speculation.method"), reading.values.get("speculation.method")
    line = re.search(r"^ +(?:method|kind): (\S+)( +# .*)$", text, re.M)
    if flag is None or line is None or line[1] == method:
        return text
    if not any(told.subject == flag for told in reading.notes):
        reading.miss(flag, f"{method} has no place on this backend")
    return text[: line.start(2)] + text[line.end(2) :]


def _tell_change(change: Change, reading: FlagReading) -> None:
    """Notes what another backend changes: the flags whose keys it removes, and other differences."""
    keys = [key for key in reading.origins if key == change.key or key.startswith(f"{change.key}.")]
    if change.after is None and keys:
        for key in keys:
            tell = reading.miss if change.key in _SPECULATION else reading.lose
            tell(reading.origins[key], change.reason)
    elif change.key not in ("name", "engine.backend", "API"):
        reading.notes = [told for told in reading.notes if told.subject != change.key]
        is_same = change.before == change.after
        fate = change.reason if is_same else f"{change.before} -> {change.after}: {change.reason}"
        reading.say(change.key, fate)


def _recipe_text(values: Mapping[str, Any], origins: Mapping[str, str], head: str) -> str:
    """Returns YAML with the sections in the schema's order, each key on a line with its origin after it."""
    lines = [f"# {head}"]
    for section in Recipe.model_fields:
        keys = {key: value for key, value in values.items() if key.partition(".")[0] == section}
        if not keys:
            continue
        if any("." in key for key in keys):
            lines += ["", f"{section}:", *_block(keys, origins, f"{section}.", 2)]
        else:
            lines.append(_key_line(0, section, keys[section], origins.get(section)))
    return "\n".join(lines) + "\n"


def _block(keys: Mapping[str, Any], origins: Mapping[str, str], path: str, indent: int) -> list[str]:
    """Returns the lines of the keys below a path. The value of a section is its kind."""
    lines = []
    for name in dict.fromkeys(key.removeprefix(path).partition(".")[0] for key in keys):
        key = path + name
        inner = {other: value for other, value in keys.items() if other.startswith(f"{key}.")}
        if not inner:
            lines.append(_key_line(indent, name, keys[key], origins.get(key)))
            continue
        lines.append(f"{' ' * indent}{name}:")
        if key in keys:
            lines.append(_key_line(indent + 2, "kind", keys[key], origins.get(key)))
        lines += _block(inner, origins, f"{key}.", indent + 2)
    return lines


def _key_line(indent: int, name: str, value: Any, origin: str | None) -> str:
    written = f"{' ' * indent}{name}: {flow(value)}"
    return f"{written.ljust(_COLUMN)}  # {origin}" if origin else written
