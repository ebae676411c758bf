"""Helm's templates of objects, from what the objects are with each sample of the values."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from itertools import groupby, pairwise
from typing import Any

import yaml

from charts.writer.conditions import Conditions, Literal
from charts.writer.marks import FIRST, Each, Number, Path, Piece, folded, pieces, whole

Variants = Sequence[tuple[int, Any]]
"""What one place of an object holds: each thing once, with the samples in which it is there."""

_LONG = 1000
_IDENTITY = ("name", "key", "mountPath", "type", "ports", "to", "alert", "record")


class Writer:
    """Writes the template of one object after another; long texts go to files of the chart's own."""

    def __init__(self, conditions: Conditions, builtins: Mapping[Path, str]) -> None:
        self._conditions, self._builtins = conditions, builtins
        self._name = ""
        self.files: dict[str, str] = {}

    def template(self, name: str, variants: Variants) -> str:
        """Returns the template of an object that is there in some samples, perhaps not in all."""
        self._name = name
        variants = _once([(mask, folded(thing)) for mask, thing in _once(variants)])
        lines = self._mapping(variants, _mask(variants), 0, ())
        told = self._told(_mask(variants), self._conditions.all, ())
        return "\n".join(_joined([(told, lines)], 0)) + "\n"

    # What stands behind a key, or behind the dash of a list

    def _entry(self, prefix: str, variants: Variants, indent: int, scope: Path) -> list[str]:
        variants, pad = _once(variants), " " * indent
        inside = _mask(variants)
        for kind, write in ((dict, self._mapping), (list, self._items)):
            if all(isinstance(thing, kind) and thing for _, thing in variants):
                behind = indent + 2
                lines = write(variants, inside, behind, scope)
                if prefix == "-" and not lines[0].lstrip().startswith("{{"):
                    return [f"{pad}- {lines[0].lstrip()}", *lines[1:]]
                return [pad + prefix, *lines]
        if len(variants) == 1:
            return self._line(prefix, variants[0][1], indent, scope)
        known = {_plain(thing): mask for mask, thing in variants if not isinstance(thing, dict | list)}
        if len(known) == len(variants) and (path := self._conditions.passed_on(known)):
            written = "toJson" if next(iter(known)) in ("true", "false") else "quote"
            return [f"{pad}{prefix} {_inserted(f'{self._value(path, scope)} | {written}')}"]
        lines, left = list[str](), inside
        for group in _alike(variants):
            mask = _mask(group)
            told = self._told(mask, left, scope)
            word = "else" if told is None else f"{'else ' if lines else ''}if {told}"
            lines += [f"{pad}{{{{- {word} }}}}", *self._entry(prefix, group, indent, scope)]
            left &= ~mask
        return [*lines, f"{pad}{{{{- end }}}}"]

    def _mapping(self, variants: Variants, inside: int, indent: int, scope: Path) -> list[str]:
        pad, parts = " " * indent, list[tuple[str | None, list[str]]]()
        keys = _in_order([list(thing) for _, thing in variants])
        given = [path for path in map(whole, keys) if path]
        if given:
            lines = [f"{pad}{{{{- toYaml . | nindent {indent} }}}}"]
            parts.append((None, _block(f"with {self._together(given, keys, scope)}", lines, indent)))
        for key in keys:
            there = [(mask, thing[key]) for mask, thing in variants if key in thing]
            path = whole(key)
            if given and _mask(there) != (inside & self._conditions.filled(path) if path else inside):
                raise ValueError(f"{key} is not always there, beside what is of a user's own")
            if path:
                continue
            entry = self._entry(f"{self._scalar(key, scope)}:", there, indent, scope)
            parts.append((self._told(_mask(there), inside, scope), entry))
        return _joined(parts, indent)

    def _together(self, given: Sequence[Path], keys: Sequence[str], scope: Path) -> str:
        """Returns the dicts of a user's own that are in an object, less the keys that it has itself.

        What is further down has the last word, and no key may be there twice.
        """
        if list(map(whole, keys[: len(given)])) != list(given):
            raise ValueError(f"what is of a user's own must come before {keys[0]}")
        dicts = [self._value(path, scope) for path in reversed(given)]
        told = dicts[0] if len(dicts) == 1 else f"merge (dict) {' '.join(dicts)}"
        own = " ".join(map(json.dumps, keys[len(given) :]))
        return f"omit {_inner(told)} {own}" if own else told

    def _items(self, variants: Variants, inside: int, indent: int, scope: Path) -> list[str]:
        parts = list[tuple[str | None, list[str]]]()
        rows = {mask: [_identity(item) for item in thing] for mask, thing in variants}
        repeats = any(isinstance(item, Each) for _, thing in variants for item in thing)
        if not repeats and len({len(row) for row in rows.values()}) == 1:
            rows = {mask: [str(place) for place in range(len(row))] for mask, row in rows.items()}
        line = _in_line(rows.values())
        at = {mask: _places(row, line) for mask, row in rows.items()}
        for place in range(len(line)):
            there = [(mask, thing[at[mask].index(place)]) for mask, thing in variants if place in at[mask]]
            if isinstance(each := there[0][1], Each):
                items = [(mask, one.item) for mask, one in there]
                lines = self._entry("-", items, indent, (*each.over, FIRST))
                lines = _block(f"range {self._value(each.over, scope)}", lines, indent)
                if outer := self._guarded(each.over, inside, scope):
                    lines = _block(f"if {outer}", lines, indent)
                # An empty list has no items anyway.
                among = inside & self._conditions.filled(each.over)
            else:
                lines, among = self._entry("-", there, indent, scope), inside
            parts.append((self._told(_mask(there), among, scope), lines))
        return _joined(parts, indent)

    # Values

    def _line(self, prefix: str, value: Any, indent: int, scope: Path) -> list[str]:
        """Returns a value behind a key or a dash; text of several lines as such, where that is possible."""
        pad, is_text = " " * indent, isinstance(value, str) and "{{" not in value and len(value) <= _LONG
        if (
            is_text
            and value.endswith("\n")
            and value.strip() == value[:-1]
            and pieces(value)[0].letters == value
        ):
            return [f"{pad}{prefix} |", *(f"{pad}  {line}".rstrip() for line in value.splitlines())]
        return [f"{pad}{prefix} {self._scalar(value, scope)}"]

    def _scalar(self, value: Any, scope: Path) -> str:
        if isinstance(value, Number):
            terms = [self._value(path, scope) for path in value.paths]
            if int(value):
                terms.append(str(int(value) + 0))
            return _inserted(f"add {' '.join(terms)}" if len(terms) > 1 else f"{terms[0]} | toJson")
        if not isinstance(value, str):
            return _constant(value)
        parts = pieces(value)
        if len(value) > _LONG and not whole(value):
            return _inserted(f"{self._kept(parts, scope)} | quote")
        if len(parts) == 1 and parts[0].path:
            return _inserted(f"{self._argument(parts[0], scope)} | quote")
        if any(part.path for part in parts):
            form = "".join(part.form if part.path else part.letters.replace("%", "%%") for part in parts)
            given = " ".join(_inner(self._argument(part, scope)) for part in parts if part.path)
            return _inserted(f"printf {json.dumps(form)} {given} | quote")
        return _inserted(f"{json.dumps(value)} | quote") if "{{" in value else _constant(value)

    def _kept(self, parts: Sequence[Piece], scope: Path) -> str:
        """Returns what reads a long text, which becomes a file of the chart; values have names in it."""
        file = f"files/{self._name}.txt"
        names = {part.path: f"@{'.'.join(part.path)}@" for part in parts if part.path}
        self.files[file] = "".join(names[part.path] if part.path else part.letters for part in parts)
        replaced = {
            f"replace {json.dumps(names[part.path])} {_inner(self._argument(part, scope))}": None
            for part in parts
            if part.path
        }
        return " | ".join((f"{'$' if scope else ''}.Files.Get {json.dumps(file)}", *replaced))

    def _argument(self, part: Piece, scope: Path) -> str:
        assert part.path
        value = self._value(part.path, scope)
        # Helm reads numbers as floating point, and writes large ones with an exponent.
        return {"%d": f"int64 {value}", "%v": f"toJson {value}"}.get(part.form, value)

    def _value(self, path: Path, scope: Path) -> str:
        if path in self._builtins:
            return self._builtins[path].replace(".", "$.", 1) if scope else self._builtins[path]
        if scope and path[: len(scope)] == scope:
            return "." + ".".join(path[len(scope) :])
        return f"{'$' if scope else ''}.Values.{'.'.join(path)}"

    # Conditions

    def _told(self, wanted: int, inside: int, scope: Path) -> str | None:
        found = self._conditions.telling(wanted, inside)
        if found is None:
            return None
        (word, literals), told = found, list[str]()
        for literal in sorted(literals, key=lambda one: len(one.path)):
            told.append(self._literal(literal, inside, scope))
            # Helm looks at the next one only if this one holds, or does not.
            inside &= literal.mask if word == "and" else ~literal.mask
        return told[0] if len(told) == 1 else " ".join((word, *map(_inner, told)))

    def _literal(self, literal: Literal, inside: int, scope: Path) -> str:
        value = self._value(literal.path, scope)
        told = f"eq {value} {json.dumps(literal.option)}" if isinstance(literal.option, str) else value
        if outer := self._guarded(literal.path, inside, scope):
            told = f"and {outer.removeprefix('and ')} {_inner(told)}"
        if literal.is_so:
            return told
        if told.startswith("eq "):
            return f"ne {told[3:]}"
        return f"not {_inner(told)}"

    def _guarded(self, path: Path, inside: int, scope: Path) -> str | None:
        """Returns the condition of the sections around a value; None where they are always there."""
        outer = [self._value(guard, scope) for guard in self._conditions.guards(path, inside)]
        return " ".join(("and", *outer)) if len(outer) > 1 else next(iter(outer), None)


def _once(variants: Variants) -> list[tuple[int, Any]]:
    """Returns each thing once."""
    found = dict[str, tuple[int, Any]]()
    for mask, thing in variants:
        key = repr(thing)
        found[key] = (mask | found[key][0] if key in found else mask, thing)
    return list(found.values())


def _mask(variants: Variants) -> int:
    mask = 0
    for one, _ in variants:
        mask |= one
    return mask


def _alike(variants: Variants) -> list[list[tuple[int, Any]]]:
    """Returns things by their kind: dicts that have something together, lists too, and each of the rest."""
    groups = dict[str, list[tuple[int, Any]]]()
    for mask, thing in variants:
        kind = type(thing).__name__ if isinstance(thing, dict | list) and thing else repr(thing)
        groups.setdefault(kind, []).append((mask, thing))
    return list(groups.values())


def _in_order(rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns the members of all rows, each once, in the order that all rows keep."""
    sorter = TopologicalSorter[str]()
    for row in rows:
        for member in row:
            sorter.add(member)
        for before, after in pairwise(row):
            sorter.add(after, before)
    return list(sorter.static_order())


def _in_line(rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns a row that has every row in its order."""
    line = list[str]()
    for row in rows:
        longer = list[str]()
        for kind, a, b, c, d in difflib.SequenceMatcher(None, line, row, autojunk=False).get_opcodes():
            longer += line[a:b] if kind != "insert" else []
            longer += row[c:d] if kind in ("insert", "replace") else []
        line = longer
    return line


def _places(row: Sequence[str], line: Sequence[str]) -> list[int]:
    """Returns where in a line each member of a row is."""
    found, at = list[int](), -1
    for member in row:
        at = line.index(member, at + 1)
        found.append(at)
    return found


def _identity(item: Any) -> str:
    """Returns what makes two items of two lists the same one."""
    if isinstance(item, Each):
        return f"each of {item.over}"
    if isinstance(item, dict):
        return next((f"{key} {item[key]!r}" for key in _IDENTITY if key in item), repr(item))
    return repr(item)


def _joined(parts: Iterable[tuple[str | None, list[str]]], indent: int) -> list[str]:
    """Returns lines, each behind its condition; neighbours of one condition share it."""
    lines = list[str]()
    for told, group in groupby(parts, key=lambda part: part[0]):
        inner = [line for _, part in group for line in part]
        lines += _block(f"if {told}", inner, indent) if told else inner
    return lines


def _block(word: str, lines: list[str], indent: int) -> list[str]:
    pad = " " * indent
    return [f"{pad}{{{{- {word} }}}}", *lines, f"{pad}{{{{- end }}}}"]


def _constant(value: Any) -> str:
    text: str = yaml.safe_dump(value, width=10**6, allow_unicode=True, default_flow_style=True)
    return text.removesuffix("\n").removesuffix("\n...")


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _inner(expression: str) -> str:
    return f"({expression})" if " " in expression else expression


def _inserted(expression: str) -> str:
    return f"{{{{ {expression} }}}}"
