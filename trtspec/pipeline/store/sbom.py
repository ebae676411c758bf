"""Turns a build's manifest into a bill of materials: CycloneDX 1.6, JSON (ECMA-424)."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote


def cyclonedx(manifest: Mapping[str, Any], digest: str, created: str) -> dict[str, Any]:
    """The bill of materials of a build, as plain data; equal input gives equal output.

    `digest` is the SHA-256 of what is described, `created` its time in ISO 8601.
    """
    name = str(manifest["name"])
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'sha256:{digest}')}",
        "version": 1,
        "metadata": {
            "timestamp": created,
            "tools": {"components": [_package("trtspec", manifest["tools"].get("trtspec", "unknown"))]},
            "component": {
                "type": "machine-learning-model",
                "bom-ref": name,
                "name": name,
                "hashes": [{"alg": "SHA-256", "content": digest}],
            },
        },
        "components": [*_models(manifest), *_packages(manifest)],
    }


def _models(manifest: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for role, model in manifest["models"].items():
        component: dict[str, Any] = {
            "type": "machine-learning-model",
            "bom-ref": role,
            "name": model["model"],
            "description": f"the {role}",
            "components": [
                {
                    "type": "file",
                    "bom-ref": f"{role}/{file}",
                    "name": file,
                    "hashes": [{"alg": "SHA-256", "content": digest}],
                }
                for file, digest in model["files"].items()
            ],
        }
        if model["revision"]:
            component["version"] = model["revision"]
            component["purl"] = f"pkg:huggingface/{quote(model['model'])}@{model['revision']}"
        yield component


def _packages(manifest: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the packages of this build, and of those builds whose engines it pulled."""
    packages: dict[str, str] = {}
    for made in (*(manifest.get("pulled") or {}).values(), manifest):
        for key in ("packages", "tools"):
            for name, version in (made.get(key) or {}).items():
                packages[re.sub(r"[-_.]+", "-", name).lower()] = version  # as PEP 503 normalizes names
    for name, version in sorted(packages.items()):
        yield _package(name, version)


def _package(name: str, version: str) -> dict[str, Any]:
    # No package index has trtspec, and who looked for it there could get another's.
    kind = "generic" if name == "trtspec" else "pypi"
    return {
        "type": "library",
        "bom-ref": f"{name}@{version}",
        "name": name,
        "version": version,
        "purl": f"pkg:{kind}/{name}@{quote(version)}",
    }
