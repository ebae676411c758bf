"""The page of every key of a recipe, from the JSON Schema that `trtspec schema` prints."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

ABOUT = """\
# Recipe keys

Every key of a recipe, from the schema that `trtspec schema` prints.

- `name`, `target`, `draft` and `hardware` are required. Some `speculation.method`s need no `draft`.
- A key that takes a section with a `kind` also takes the name of the kind alone: `method: ngram`.
- A key that the schema does not know is refused with its line.
- In parentheses is what a key takes, if it is not text, and its default.
- `trtspec plan -v` shows every default with its reason.

For completion in an editor, run `trtspec schema > recipe.schema.json` and make this the recipe's first line:

```yaml
# yaml-language-server: $schema=recipe.schema.json
```
"""
Schema = dict[str, Any]


@dataclass(frozen=True)
class Section:
    """A section of the page: the keys of one object."""

    title: str
    about: str
    schema: Schema


@dataclass
class Pages:
    """The sections as they are found, each definition of the schema once."""

    definitions: dict[str, Schema]
    titles: dict[str, str] = field(default_factory=dict)
    """Where a definition is described, by its name."""

    def sections(self, path: str, schema: Schema) -> Iterator[Section]:
        """Yields an object's own section, then those of the objects in it."""
        yield Section(path or "The recipe", schema.get("description", ""), schema)
        for key, value in schema.get("properties", {}).items():
            inside = f"{path}.{key}" if path else key
            for name in _references(value):
                if name in self.titles:
                    continue
                found = self.definitions[name]
                kind = found.get("properties", {}).get("kind", {}).get("const")
                self.titles[name] = title = f"{inside}: {kind}" if kind else inside
                yield from self.sections(title, found)

    def kind_of(self, schema: Schema) -> str:
        """Returns what a key takes, in words and links."""
        if "const" in schema:
            return f"`{json.dumps(schema['const'])}`".replace('"', "")
        if "enum" in schema:
            return ", ".join(f"`{value}`" for value in schema["enum"])
        if (name := _name(schema)) is not None:
            title = self.titles[name]
            return f"[`{title.rpartition(': ')[2]}`](#{_anchor(title)})"
        if "anyOf" in schema:
            kinds = [self.kind_of(each) for each in schema["anyOf"] if each.get("type") != "null"]
            unique = dict.fromkeys(kind for kind in kinds if kind != "integer" or "number" not in kinds)
            if any(_name(each) for each in schema["anyOf"]) and len(unique) > 1:
                return ", ".join(kind for kind in unique if kind.startswith("["))
            return _bounded(" or ".join(unique), schema)
        if schema.get("type") == "array":
            return f"list of {self.kind_of(schema['items'])}"
        if schema.get("type") == "object":
            return "mapping"
        return _bounded(schema.get("type", "any"), schema)


def page(schema: Schema) -> str:
    """Returns the page as Markdown; a key that two sections describe alike is in the first of them."""
    pages = Pages(schema["$defs"])
    sections = list(pages.sections("", schema))
    lines, described = [ABOUT], dict[str, str]()
    for section in sections:
        depth = "##" if section.title.count(".") == 0 and ":" not in section.title else "###"
        lines += [f"{depth} {_heading(section.title)}", "", section.about, ""]
        keys = {key: value for key, value in section.schema.get("properties", {}).items() if key != "kind"}
        required = set(section.schema.get("required", ()))
        rows = {key: _row(key, value, key in required, pages) for key, value in keys.items()}
        if own := [row for row in rows.values() if row not in described]:
            lines += [*own, ""]
        for title in dict.fromkeys(described[row] for row in rows.values() if row in described):
            names = ", ".join(f"`{key}`" for key, row in rows.items() if described.get(row) == title)
            lines += [f"{names}: as in [`{title}`](#{_anchor(title)}).", ""]
        described = dict.fromkeys(rows.values(), section.title) | described
    return "\n".join(lines)


def _row(key: str, schema: Schema, required: bool, pages: Pages) -> str:
    default = "required" if required else _default(schema)
    name = _name(schema)
    # A section has its description itself.
    kind = pages.kind_of(schema)
    is_section = bool(name) or (kind.startswith("[") and kind.count("](") == 1)
    about = "" if is_section else _escaped(" ".join(schema.get("description", "").split()))
    takes = "; ".join(filter(None, ("" if kind == "string" else kind, default)))
    return f"- `{key}`{f' ({takes})' if takes else ''}{f': {about}' if about else ''}"


def _default(schema: Schema) -> str:
    value = schema.get("default")
    if value is None or value in ([], {}):
        return ""
    if isinstance(value, dict):
        return f"`{value['kind']}`" if "kind" in value else ""
    return f"`{json.dumps(value)}`".replace('"', "")


def _bounded(kind: str, schema: Schema) -> str:
    least = schema.get("minimum", schema.get("ge"))
    most = schema.get("maximum", schema.get("le"))
    if most is not None and most >= 2**31 - 1:
        most = None
    if "exclusiveMinimum" in schema:
        kind += f" above {schema['exclusiveMinimum']}"
    if least is not None and most is not None:
        return f"{kind}, {least:,} to {most:,}"
    if least is not None:
        return f"{kind} ≥ {least:,}"
    return f"{kind} ≤ {most:,}" if most is not None else kind


def _references(schema: Schema) -> Iterator[str]:
    """Yields the definitions that a key's value may have."""
    if (name := _name(schema)) is not None:
        yield name
    for each in schema.get("anyOf", ()):
        yield from _references(each)
    if isinstance(schema.get("items"), dict):
        yield from _references(schema["items"])


def _name(schema: Schema) -> str | None:
    reference = schema.get("$ref")
    return reference.rpartition("/")[2] if reference else None


def _heading(title: str) -> str:
    return title if " " in title and ":" not in title else f"`{title}`"


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _escaped(text: str) -> str:
    """Returns a text whose `<name>` is no tag of HTML."""
    return re.sub(r"<(\w+)>", r"`<\1>`", text)
