"""Finds out what a folder is. Of its weights only headers and scales are read, and no code of it is run.

A build has parts, and is inspected here: its inputs by the manifest, and whether all of its files are there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtspec.base.errors import ModelError
from trtspec.base.findings import Finding, errors, ok
from trtspec.models.download import cached_folder
from trtspec.models.heads.check import check_head
from trtspec.models.heads.reading import is_head, read_head
from trtspec.models.model_file import has_file
from trtspec.models.pair import compare, read_member
from trtspec.models.source import read_json, read_source, refuse_foreign
from trtspec.pipeline.engine.manifest import Manifest, read_manifest
from trtspec.pipeline.inspection.engine import inspect_checkpoint, inspect_engine
from trtspec.pipeline.inspection.hugging_face import inspect_head, inspect_model
from trtspec.pipeline.inspection.report import Report

MANIFEST = "manifest.json"
_FEW = 5
_PART = re.compile(r"(target|draft)/(checkpoint|engine)/config\.json")
_AGAIN = "trtspec build RECIPE makes it again"


def inspect(place: str, target: str | None = None) -> Report:
    """Returns the report of a folder, or of a Hub model that this machine has; raises ModelError for neither.

    With a target, it compares a complete head or model with it, and a finding says whether it fits.
    """
    folder = _find(place)
    report = _inspected(folder)
    if target is None or errors(report.findings):
        return report
    compared = _compared(report, _find(target))
    if not errors(compared):
        compared.append(ok("target", f"{place} fits {target}"))
    return replace(report, findings=(*report.findings, *compared))


def _compared(report: Report, target: Path) -> list[Finding]:
    if report.kind == "head":
        return check_head(read_head(report.folder), read_source(target))
    if report.kind == "hugging_face":
        return compare(read_member(target), read_member(report.folder))
    problem = f"is {report.kind}, which cannot be compared with a target"
    raise ModelError(report.folder, problem, "name the folder of a head or of a model")


def _inspected(folder: Path) -> Report:
    if manifest := read_manifest(folder / MANIFEST):
        return _inspect_build(folder, manifest)
    config = read_json(folder / "config.json")
    if "pretrained_config" in config:
        return inspect_engine(folder, config)
    if "architecture" in config and "mapping" in config:
        return inspect_checkpoint(folder, config)
    if is_head(folder):
        return inspect_head(folder)
    return inspect_model(folder, config)


def _find(place: str) -> Path:
    folder = Path(place)
    if not folder.is_dir():
        cached = None if folder.exists() else cached_folder(place)
        if cached is None:
            refuse_foreign(folder, [folder.name])
            if place.startswith((".", "/", "~")) or folder.exists():
                raise ModelError(place, "is not a folder", "name the folder of a model, head or engine")
            problem = "is neither a folder nor a Hub model in this machine's cache"
            raise ModelError(place, problem, f"download a model of the Hub first: hf download {place}")
        return cached
    if not has_file(folder / "config.json") and read_manifest(folder / MANIFEST) is None:
        refuse_foreign(folder, (path.name for path in folder.iterdir()), folder)
        below = sorted(str(config.parent) for config in folder.glob("*/*/config.json"))
        repair = f"name one of {', '.join(below)}" if below else "name the folder of a model or of an engine"
        raise ModelError(folder, "has no config.json", repair)
    return folder


def _inspect_build(folder: Path, manifest: Manifest) -> Report:
    """Returns the report of a finished build; findings of checkpoints and engines name their path in it."""
    paths = {name: folder / name for name in manifest.outputs}
    missing = [name for name, file in paths.items() if not file.is_file()]
    findings = [Finding(name, "is missing", _AGAIN) for name in missing[:_FEW]]
    if more := missing[_FEW:]:
        findings.append(Finding("", f"{len(more)} more files are missing", _AGAIN))
    made = {Path(name).parent for name in paths if _PART.fullmatch(name)}
    parts = sorted(made - {Path(name).parent for name in missing})
    for part in parts:
        for found in _inspected(folder / part).findings:
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
