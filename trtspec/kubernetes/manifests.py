"""All objects of a deployment, in the order in which they are applied, and their text; pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from trtspec.kubernetes.kinds.base import Object, document
from trtspec.kubernetes.rendering.workload import deployment, recipe_map, service
from trtspec.kubernetes.values import Values

_WIDTH = 110


def manifests(values: Values) -> list[Object]:
    """Returns the objects; each comes after those that it names."""
    return [recipe_map(values), service(values), deployment(values)]


def to_yaml(objects: Iterable[Object]) -> str:
    """Returns the objects as the documents of one YAML text, as `kubectl apply` reads it."""
    return "".join(f"---\n{_dump(document(thing))}" for thing in objects)


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as such, and no anchors."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _dump(content: dict[str, Any]) -> str:
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True)
