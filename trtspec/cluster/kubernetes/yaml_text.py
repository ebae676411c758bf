"""Writes plain data as YAML that Kubernetes, Helm and people read alike."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import yaml

_WIDTH = 110
_NO_TEXT = re.compile(r"[yYnN]|[-+]?(\.\d[\d_]*|\d[\d_]*(\.[\d_]*)?)([eE][-+]?\d+)?|[-+]?0o[0-7_]+")
"""Text that Kubernetes' parsers read as a number or a Boolean, but PyYAML as text: 1e3, 1_0e3, -0o7, y."""


def to_yaml(objects: Iterable[dict[str, Any]]) -> str:
    """Returns objects as the documents of one text, as `kubectl apply` reads it."""
    return "".join(f"---\n{dump(thing)}" for thing in objects)


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as a block, and no anchors."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    quoted = "'" if _NO_TEXT.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else quoted)


_Dumper.add_representer(str, _text)


def dump(content: dict[str, Any]) -> str:
    """Returns one document of YAML."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True)
