"""Writes YAML as CI systems read it (1.2): `on` is a word, and a script keeps its lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

_WIDTH = 110


class _Dumper(yaml.SafeDumper):
    """Writes YAML 1.2; PyYAML itself would write YAML 1.1, with quotes around `on`."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        letter: [(tag, pattern) for tag, pattern in resolvers if letter not in "oOyYnN" or "bool" not in tag]
        for letter, resolvers in yaml.SafeDumper.yaml_implicit_resolvers.items()
    }

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def to_yaml(document: Mapping[str, Any], comment: str) -> str:
    """Returns the document below a comment, with an empty line before each of its sections."""
    sections = [
        yaml.dump({key: value}, Dumper=_Dumper, sort_keys=False, width=_WIDTH)
        for key, value in document.items()
    ]
    lines = "".join(f"# {line}\n" if line else "#\n" for line in comment.splitlines())
    return "\n".join([lines, *sections])
