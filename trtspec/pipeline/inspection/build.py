"""Inspects a build: its inputs by the manifest, and whether all of its files are there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtspec.base.findings import Finding
from trtspec.pipeline.engine.manifest import Manifest
from trtspec.pipeline.inspection.report import Report

MANIFEST = "manifest.json"
_FEW = 5
_AGAIN = "trtspec build RECIPE makes it again"


def inspect_build(folder: Path, manifest: Manifest, look: Callable[[Path], Report]) -> Report:
    """Returns the report of a finished build; `look` returns that of a checkpoint or an engine in it.

    Their findings name their path in the build. Engines alone count as stored, since checkpoints hold the
    same weights.
    """
    paths = {name: folder / name for name in manifest.outputs}
    missing = [name for name, file in paths.items() if not file.is_file()]
    findings = list(_missing(missing))
    parts = sorted(
        {Path(name).parent for name in paths if _is_part(name)} - {Path(name).parent for name in missing}
    )
    for part in parts:
        for found in look(folder / part).findings:
            subject = f"{part}: {found.subject}" if found.subject else str(part)
            findings.append(replace(found, subject=subject))
    return Report(
        folder=folder,
        kind="build",
        facts=_facts(manifest, [str(part) for part in parts]),
        stored={},
        files=(folder / MANIFEST, *(file for name, file in paths.items() if name not in missing)),
        findings=tuple(findings),
    )


def _is_part(name: str) -> bool:
    """Says whether a file is the configuration of a model's checkpoint or engine."""
    role, _, rest = name.partition("/")
    return role in ("target", "draft") and rest in ("checkpoint/config.json", "engine/config.json")


def _facts(manifest: Manifest, parts: list[str]) -> Mapping[str, Any]:
    models = {
        role: " @ ".join(filter(None, (model.get("model"), model.get("revision"))))
        for role, model in manifest.models.items()
    }
    return {
        "name": manifest.name,
        "backend": manifest.backend,
        **models,
        "gpu": manifest.gpu and manifest.gpu.get("name"),
        "image": manifest.image,
        "recipe": manifest.recipe,
        "parts": ", ".join(parts) or None,
    }


def _missing(names: list[str]) -> Iterator[Finding]:
    for name in names[:_FEW]:
        yield Finding(name, "is missing", _AGAIN)
    if more := names[_FEW:]:
        yield Finding("", f"{len(more)} more files are missing", _AGAIN)
