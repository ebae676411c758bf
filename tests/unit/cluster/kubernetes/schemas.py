"""The schemas that an API server holds objects to: Kubernetes' own, and those of custom resources.

The latter are in `tests/data/crds`, unmodified. An API server drops keys that they do not know; here they are
errors, as they are in Kubernetes' own kinds.
"""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from jsonschema import Draft202012Validator

CRDS = Path(__file__).parents[3] / "data/crds"
FILES = {
    "AnalysisTemplate": "argoproj.io_analysistemplates",
    "HTTPRoute": "gateway.networking.k8s.io_httproutes",
    "InferencePool": "inference.networking.k8s.io_inferencepools",
    "InferenceService": "serving.kserve.io_inferenceservices",
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io_leaderworkersets",
    "PodMonitor": "monitoring.coreos.com_podmonitors",
    "PrometheusRule": "monitoring.coreos.com_prometheusrules",
    "Rollout": "argoproj.io_rollouts",
    "ScaledObject": "keda.sh_scaledobjects",
    "ServingRuntime": "serving.kserve.io_servingruntimes",
}


def check(document: dict[str, Any]) -> None:
    """Raises an error of the library that judges for an object that an API server would not take whole."""
    if document["kind"] not in FILES:
        kubernetes_validate.validate(document, "1.37", strict=True)
        return
    group, _, version = document["apiVersion"].partition("/")
    found_group, versions = _resource(FILES[document["kind"]])
    assert group == found_group
    Draft202012Validator(versions[version]).validate(document)


@cache
def _resource(name: str) -> tuple[str, dict[str, Any]]:
    """The group of a custom resource, and the schema of each of its versions, closed."""
    with gzip.open(CRDS / f"{name}.yaml.gz") as stream:
        spec = yaml.load(stream, yaml.CSafeLoader)["spec"]
    served = [version for version in spec["versions"] if version["served"]]
    schemas = {version["name"]: version["schema"]["openAPIV3Schema"] for version in served}
    for schema in schemas.values():
        _close(schema)
    return spec["group"], schemas


def _close(schema: Any) -> None:
    if isinstance(schema, list):
        for part in schema:
            _close(part)
    if not isinstance(schema, dict):
        return
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        schema.setdefault("additionalProperties", False)
    for part in schema.values():
        _close(part)
