"""Changes keys of a recipe's text, and nothing else of it: order, comments and spaces stay.

It edits the text at the marks of ruamel.yaml's nodes. ruamel.yaml's own round trip changes other lines
(indents, mappings in braces over several lines) and removes the comments after a removed key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trtspec.base import yaml11
from trtspec.base.errors import RecipeError
from trtspec.base.findings import Finding
from trtspec.recipe.loader import LoadedRecipe
from trtspec.recipe.yaml_reader import Unreadable, read


def written(location: Path | str, folder: Path | None) -> str:
    """Returns a model's folder relative to `folder`, or its absolute path if that is None; a Hub id stays as
    it is."""
    if isinstance(location, str):
        return location
    if folder is None:
        return str(location.resolve())
    relative = Path(os.path.relpath(location.resolve(), folder.resolve())).as_posix()
    return relative if relative.startswith("../") else f"./{relative}"


def places(loaded: LoadedRecipe, folder: Path | None) -> dict[str, str]:
    """Returns the keys of a recipe that name files, with how a recipe in `folder` names them."""
    recipe, found = loaded.recipe, dict[str, str]()
    files: dict[str, str | None] = {"fleet.workload": recipe.fleet.workload}
    for role, location in loaded.locations.items():
        if isinstance(location, Path):
            found[f"{role}.model"] = written(location, folder)
        model = recipe.models[role]
        calibration, adapter = model.quantization.calibration, model.build.get("lora_dir")
        files[f"{role}.quantization.calibration.dataset"] = calibration.dataset if calibration else None
        files[f"{role}.build.lora_dir"] = str(adapter) if adapter else None
    if recipe.draft:
        files["draft.layer_search.dataset"] = recipe.draft.layer_search.dataset
    for key, file in files.items():
        if file and (place := loaded.path.parent / file).exists():
            found[key] = written(place, folder)
    # A draft of the target's layers has keys of the target, which its own section must not pin.
    return {key: place for key, place in found.items() if key in loaded.lines}


Pair = tuple[yaml11.Node, yaml11.Node]


def edit(text: str, changes: Mapping[str, Any], path: Path) -> str:
    """Returns the recipe's text with new values at dotted keys; None removes a key.

    It adds missing sections, removes those that a removed key leaves empty, and reads the result again.
    Raises `RecipeError` for `path` if the result has other values than it should, for example because a
    changed value is an alias.
    """
    before = read(text.encode())
    wanted, after = before.values, None
    with suppress(Unreadable, yaml11.YAMLError):
        for key, value in changes.items():
            keys = (_emptied(key, wanted) if value is None else key).split(".")
            _set(wanted, keys, _as_read(value))
            text = _changed(text, keys, value)
        after = read(text.encode())
    if after is None or after.values != wanted or len(after.findings) > len(before.findings):
        written = ", ".join(f"{key}: {flow(value)}" for key, value in changes.items())
        problem = "is written in a way that trtspec cannot change without changing more"
        raise RecipeError(path, [Finding("", problem, f"write it by hand: {written}")])
    return text


def value_of(key: str, values: Mapping[str, Any]) -> Any:
    """Returns the value of a dotted key; None if there is none."""
    found: Any = values
    for name in key.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _emptied(key: str, values: Mapping[str, Any]) -> str:
    """Returns the key, or the largest section that would be empty without it.

    A recipe that says nothing in a section is refused.
    """
    section, _, name = key.rpartition(".")
    others = value_of(section, values)
    return _emptied(section, values) if isinstance(others, dict) and others.keys() == {name} else key


def _as_read(value: Any) -> Any:
    """Returns a value as the reader has it, whose keys are all texts: numbers of requests too."""
    return {str(key): _as_read(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def _set(values: dict[str, Any], keys: list[str], value: Any) -> None:
    *sections, last = keys
    for name in sections:
        if not isinstance(values.get(name), dict):
            if value is None:
                return
            values[name] = {}
        values = values[name]
    if value is None:
        values.pop(last, None)
    else:
        values[last] = value


def _changed(text: str, keys: list[str], value: Any) -> str:
    (section,) = yaml11.compose(text)
    for depth, key in enumerate(keys):
        assert isinstance(section, yaml11.MappingNode)
        pair = next((pair for pair in section.value if pair[0].value == key), None)
        rest = keys[depth + 1 :]
        if pair is None:
            return text if value is None else _inserted(text, section, key, _nested(rest, value))
        if not rest:
            return _removed(text, section, pair) if value is None else _replaced(text, pair, value)
        if not isinstance(pair[1], yaml11.MappingNode):
            return text if value is None else _begun(text, pair, _nested(rest, value))
        section = pair[1]
    raise AssertionError(keys)


def _nested(keys: list[str], value: Any) -> Any:
    for key in reversed(keys):
        value = {key: value}
    return value


def _replaced(text: str, pair: Pair, value: Any) -> str:
    key, old = pair
    begin, end = old.start_mark.index, _end(old)
    if begin == end or _is_block(old):
        colon = text.index(":", key.end_mark.index) + 1
        return f"{text[:colon]} {flow(value)}{text[colon if begin == end else end :]}"
    return text[:begin] + flow(value) + text[end:]


def _begun(text: str, pair: Pair, value: Any) -> str:
    """Returns the text with keys in an empty section, such as one whose keys are all comments."""
    place = _end_of_line(text, pair[0].end_mark.index)
    indent = pair[0].start_mark.column + 2
    return text[:place] + "".join(f"\n{line}" for line in _block(value, indent)) + text[place:]


def _inserted(text: str, section: yaml11.MappingNode, key: str, value: Any) -> str:
    if not _is_block(section):
        place = _end(section.value[-1][1]) if section.value else section.start_mark.index + 1
        return f"{text[:place]}{', ' if section.value else ''}{flow({key: value})[1:-1]}{text[place:]}"
    lines = _block({key: value}, section.start_mark.column)
    place = _end(section.value[-1][1])
    if text[place - 1] == "\n":  # A literal ends with its line.
        return text[:place] + "".join(f"{line}\n" for line in lines) + text[place:]
    place = _end_of_line(text, place)
    return text[:place] + "".join(f"\n{line}" for line in lines) + text[place:]


def _removed(text: str, section: yaml11.MappingNode, pair: Pair) -> str:
    begin, end = pair[0].start_mark.index, _end(pair[1])
    if _is_block(section):
        first = text.rfind("\n", 0, begin) + 1
        return text[:first] + text[_end_of_line(text, max(end, pair[0].end_mark.index)) + 1 :]
    if section.value[-1] is not pair:
        following = next(
            after for before, after in zip(section.value, section.value[1:], strict=False) if before is pair
        )
        return text[:begin] + text[following[0].start_mark.index :]
    if len(section.value) > 1:
        begin = _end(section.value[-2][1])
    return text[:begin] + text[end:]


def _is_block(node: yaml11.Node) -> bool:
    return isinstance(node, yaml11.CollectionNode) and not node.flow_style


def _end(node: yaml11.Node) -> int:
    """Returns the index of a node's end. A block ends with its last value, not at the next node."""
    if _is_block(node) and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    end: int = node.end_mark.index
    return end


def _end_of_line(text: str, place: int) -> int:
    end = text.find("\n", place)
    return len(text) if end < 0 else end


def _block(value: Mapping[str, Any], indent: int) -> list[str]:
    """Returns the lines of a mapping: a section's key on its own line, and deeper mappings in braces."""
    lines = []
    for key, inner in value.items():
        if isinstance(inner, Mapping) and len(inner) == 1:
            lines += [f"{' ' * indent}{key}:", *_block(inner, indent + 2)]
        else:
            lines.append(f"{' ' * indent}{key}: {flow(inner)}")
    return lines


def flow(value: Any) -> str:
    """Returns a value on one line, as YAML writes it."""
    return yaml11.dump([value], on_one_line=True).strip()[1:-1]
