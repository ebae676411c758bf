"""Objects with who has set which field, as a server-side apply keeps it.

https://kubernetes.io/docs/reference/using-api/server-side-apply/ says how: a manager is a name with an
operation; a field that another manager has set to another value is a conflict unless it is forced; a field
that a manager no longer applies goes where nobody else has it. Lists merge by `name` where all items have
one, and are replaced whole elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
Path = tuple[str, ...]


class Conflict(Exception):
    """Fields that other managers have set."""


@dataclass
class Stored:
    """`configs` is what each manager with its operation has set; `status` comes from the controllers."""

    configs: dict[tuple[str, str], Json] = field(default_factory=dict)
    metadata: Json = field(default_factory=dict)
    status: Json = field(default_factory=dict)
    generation: int = 0
    version: int = 0

    def manifest(self) -> Json:
        merged: Json = {}
        for config in self.configs.values():
            merged = _merge(merged, config)
        counted = {"generation": self.generation, "resourceVersion": str(self.version)}
        metadata = {**merged.get("metadata", {}), **self.metadata, **counted}
        return {**merged, "metadata": metadata, **({"status": self.status} if self.status else {})}

    def apply(self, config: Json, manager: str, *, force: bool) -> None:
        """Sets what the config says, and lets go of what the manager has set before."""
        own = (manager, "Apply")
        wanted = dict(_leaves(config))
        conflicts = []
        for other, held in self.configs.items():
            theirs = dict(_leaves(held))
            differing = [path for path in wanted if path in theirs and theirs[path] != wanted[path]]
            if other == own or not differing:
                continue
            if force:
                for path in differing:
                    _drop(held, path)
            else:
                conflicts.append((other[0], differing))
        if conflicts:
            count = sum(len(paths) for _, paths in conflicts)
            lines = [
                f'conflict{"s" * (len(paths) > 1)} with "{name}" using {config["apiVersion"]}: '
                + ", ".join("." + ".".join(path) for path in paths)
                for name, paths in conflicts
            ]
            raise Conflict(f"Apply failed with {count} conflict{'s' * (count > 1)}: {'; '.join(lines)}")
        before = self.manifest()
        applied = deepcopy(config)
        applied["metadata"].pop("resourceVersion", None)
        self.configs[own] = applied
        self._count(before)

    def merge(self, change: Json, manager: str) -> None:
        """Sets some fields, as a merge patch does; whoever has set them before has them no longer."""
        before = self.manifest()
        for path, _ in _leaves(change):
            for config in self.configs.values():
                _drop(config, path)
        own = (manager, "Update")
        self.configs[own] = _merge(self.configs.get(own, {}), change)
        self._count(before)

    def _count(self, before: Json) -> None:
        """Counts the generations, which are those of what is wanted."""
        self.version += 1
        if before.get("spec") != self.manifest().get("spec") or not self.generation:
            self.generation += 1


def _leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    named = _by_name(value)
    if named is not None:
        for name, item in named.items():
            yield from _leaves(item, (*path, f"[{name}]"))
    elif isinstance(value, dict) and value:
        for key, item in value.items():
            if path or key not in ("apiVersion", "kind"):
                yield from _leaves(item, (*path, key))
    else:
        yield path, value


def _drop(config: Any, path: Path) -> None:
    """Takes a field out of a config, and what is empty then."""
    head, *rest = path
    if head.startswith("["):
        named = _by_name(config) or {}
        if rest and head[1:-1] in named:
            _drop(named[head[1:-1]], tuple(rest))
        return
    if not isinstance(config, dict) or head not in config:
        return
    if rest:
        _drop(config[head], tuple(rest))
        if config[head] != {}:
            return
    del config[head]


def _merge(below: Any, above: Any) -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        merged = dict(below)
        for key, value in above.items():
            merged[key] = _merge(below[key], value) if key in below else deepcopy(value)
        return merged
    one, other = _by_name(below), _by_name(above)
    if one and other:
        return list(_merge(one, other).values())
    return deepcopy(above)


def _by_name(value: Any) -> dict[str, Any] | None:
    if isinstance(value, list) and value and all(isinstance(item, dict) and "name" in item for item in value):
        return {item["name"]: item for item in value}
    return None
