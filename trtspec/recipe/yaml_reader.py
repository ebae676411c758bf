"""Reads YAML as plain values with the line of each key, and refuses valid YAML that is surely a mistake.

ruamel.yaml parses. Its own constructors stop at the first duplicate key, and do not bound aliases. So the
values are made from its nodes here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from trtspec.base import yaml11
from trtspec.base.findings import Finding

MAX_BYTES = 256 * 1024
_MAX_VALUES = 5_000
_MAX_DEPTH = 20

_TAG = "tag:yaml.org,2002:"
_BOOLS = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9_]{0,30})\Z")
_FLOAT = re.compile(r"[-+]?([0-9][0-9_]*\.?[0-9_]*|\.[0-9]+)([eE][-+]?[0-9]+)?\Z")


class Unreadable(Exception):
    """Raised for a text that cannot be read as one recipe; `findings` says why."""

    def __init__(self, problem: str, repair: str | None = None, *, line: int | None = None) -> None:
        super().__init__(problem)
        self.findings = (Finding("", problem, repair, line=line),)


@dataclass(slots=True)
class Document:
    """The content of a file, and its problems."""

    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    """The 1-based line of each dotted key."""
    written: dict[str, str] = field(default_factory=dict)
    """The text of each scalar that is not quoted."""
    findings: list[Finding] = field(default_factory=list)


def read(data: bytes) -> Document:
    """Reads one YAML document whose top level is a mapping; raises Unreadable for any other text.

    A key or value that is refused becomes a finding of the document.
    """
    root = _compose(_decode(data))
    if not isinstance(root, yaml11.MappingNode):
        problem = f"the top level is {_kind(root)}, not keys with values"
        raise Unreadable(problem, _EXAMPLE, line=_line(root))
    reader = _Reader(Document())
    reader.document.values = reader.mapping(root, "", 1)
    return reader.document


_EXAMPLE = "write for example `name: my-pair`; `trtspec init` writes a whole recipe"


def _decode(data: bytes) -> str:
    if len(data) > MAX_BYTES:
        raise Unreadable(f"is larger than {MAX_BYTES // 1024} KiB, which no recipe is")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Unreadable("is not UTF-8 text", "save the file as UTF-8", line=line) from None


def _compose(text: str) -> yaml11.Node:
    try:
        nodes = yaml11.compose(text)
    except RecursionError:
        raise Unreadable("is nested too deeply") from None
    except yaml11.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problem = f"holds the character U+{ord(text[error.position]):04X}, which YAML forbids"
        raise Unreadable(problem, line=line) from None
    except yaml11.MarkedYAMLError as error:
        raise _unreadable(error) from None
    if not nodes or _is_empty(nodes[0]):
        raise Unreadable("is empty", "`trtspec init` writes a whole recipe")
    if len(nodes) > 1:
        problem = "a second document begins here (`---`)"
        raise Unreadable(problem, "one file holds one recipe", line=_line(nodes[1]))
    return nodes[0]


def _unreadable(error: yaml11.MarkedYAMLError) -> Unreadable:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else None
    problem = error.problem or "cannot be parsed"
    if "'\\t'" in problem:
        return Unreadable("a tab stands where YAML allows only spaces", "indent with spaces", line=line)
    column = f" (column {mark.column + 1})" if mark else ""
    context = f"{error.context}: " if error.context else ""
    return Unreadable(f"is not valid YAML: {context}{problem}{column}", line=line)


def _is_empty(node: yaml11.Node) -> bool:
    return isinstance(node, yaml11.ScalarNode) and node.tag == f"{_TAG}null"


class _Reader:
    """Turns nodes into values. An alias is expanded each time it is used, so values are counted."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self._values = 0

    def mapping(self, node: yaml11.MappingNode, path: str, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        first: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = _line(key_node)
            if not isinstance(key_node, yaml11.ScalarNode):
                self._refuse(line, path, f"a key is {_kind(key_node)}, not text")
                continue
            key = key_node.value
            dotted = f"{path}.{key}" if path else key
            if key_node.tag == f"{_TAG}merge":
                self._refuse(
                    line, dotted, "merge keys are not read", "write the keys out; *aliases of values work"
                )
            elif key in first:
                problem = f"appears twice, on line {first[key]} and on line {line}"
                self._refuse(line, dotted, problem, "remove one of them")
            else:
                first[key] = self.document.lines[dotted] = line
                result[key] = self._value(value_node, dotted, depth)
        return result

    def _value(self, node: yaml11.Node, path: str, depth: int) -> Any:
        self._values += 1
        if self._values > _MAX_VALUES:
            problem = f"has more than {_MAX_VALUES} values once its aliases are expanded"
            raise Unreadable(problem, line=_line(node))
        if depth >= _MAX_DEPTH:
            raise Unreadable(f"is nested more than {_MAX_DEPTH} levels deep", line=_line(node))
        if isinstance(node, yaml11.MappingNode) and node.tag == f"{_TAG}map":
            return self.mapping(node, path, depth + 1)
        if isinstance(node, yaml11.SequenceNode) and node.tag == f"{_TAG}seq":
            return [self._value(item, path, depth + 1) for item in node.value]
        if isinstance(node, yaml11.ScalarNode):
            return self._scalar(node, path)
        return self._refuse(
            _line(node), path, f"has the tag {_tag(node)}, which is not read", "remove the tag"
        )

    def _scalar(self, node: yaml11.ScalarNode, path: str) -> Any:
        text, line = node.value, _line(node)
        kind = str(node.tag).removeprefix(_TAG)
        if node.style is None:
            self.document.written[path] = text
        if kind in ("str", "timestamp", "value"):
            return text
        if kind == "null":
            return None
        if kind == "bool":
            return _BOOLS.get(text.lower(), text)
        if kind == "int":
            if _DECIMAL.match(text):
                return int(text.replace("_", ""))
            problem = f"YAML reads {text:.60} as a number that is not written in decimal digits"
            return self._refuse(
                line, path, problem, "put it in quotes if it is text, or write it in decimal digits"
            )
        if kind == "float" and "." not in text and ":" not in text:
            # Text in YAML 1.1, such as the commit 1e10; ruamel.yaml has it for a number.
            return text
        if kind == "float":
            if _FLOAT.match(text):
                return float(text.replace("_", ""))
            return self._refuse(
                line, path, f"YAML reads {text:.60} as a number that has no use here", "put it in quotes"
            )
        return self._refuse(line, path, f"has the tag {_tag(node)}, which is not read", "remove the tag")

    def _refuse(self, line: int, path: str, problem: str, repair: str | None = None) -> None:
        self.document.findings.append(Finding(path, problem, repair, line=line))


def _line(node: yaml11.Node) -> int:
    return int(node.start_mark.line) + 1


def _kind(node: yaml11.Node) -> str:
    if isinstance(node, yaml11.MappingNode):
        return "a mapping"
    return "a list" if isinstance(node, yaml11.SequenceNode) else "a single value"


def _tag(node: yaml11.Node) -> str:
    return str(node.tag).replace(_TAG, "!!")
