"""What an API server tells of itself: its version, its groups, and the kinds of each."""

from __future__ import annotations

from collections.abc import Collection

from tests.fakes.kubernetes.objects import Json

KINDS = {
    "v1": ("Pod", "Event", "ConfigMap", "PersistentVolumeClaim", "Service", "ServiceAccount", "Secret"),
    "batch/v1": ("Job",),
    "apps/v1": ("Deployment",),
    "networking.k8s.io/v1": ("NetworkPolicy",),
    "policy/v1": ("PodDisruptionBudget",),
    "autoscaling/v2": ("HorizontalPodAutoscaler",),
    "keda.sh/v1alpha1": ("ScaledObject",),
    "leaderworkerset.x-k8s.io/v1": ("LeaderWorkerSet",),
    "serving.kserve.io/v1alpha1": ("ServingRuntime",),
    "serving.kserve.io/v1beta1": ("InferenceService",),
    "monitoring.coreos.com/v1": ("PodMonitor", "PrometheusRule"),
    "gateway.networking.k8s.io/v1": ("HTTPRoute",),
    "inference.networking.k8s.io/v1": ("InferencePool",),
}
"""By their API's version; those of groups that are not installed are not told."""


def told(path: str, groups: Collection[str]) -> Json | None:
    """What is answered to a question about the server itself; None for any other."""
    versions: dict[str, list[str]] = {}
    for api in KINDS:
        if (group := api.rpartition("/")[0]) in groups:
            versions.setdefault(group, []).append(api)
    if path == "/version":
        return {"major": "1", "minor": "34", "gitVersion": "v1.34.0"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        found = [_group(name, apis) for name, apis in versions.items() if name]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}
    if path == "/openapi/v3":
        paths = {
            _root(api): {"serverRelativeURL": f"/openapi/v3/{_root(api)}"}
            for apis in versions.values()
            for api in apis
        }
        return {"paths": paths}
    if path.startswith("/openapi/v3/"):
        return _specification(path.removeprefix("/openapi/v3/").removeprefix("apis/").removeprefix("api/"))
    api = path.removeprefix("/apis/").removeprefix("/api/")
    if api in KINDS and api.rpartition("/")[0] in versions:
        resources = [_resource(kind) for kind in KINDS[api]]
        return {"kind": "APIResourceList", "groupVersion": api, "resources": resources}
    return None


def _root(api: str) -> str:
    return f"apis/{api}" if "/" in api else f"api/{api}"


def _specification(api: str) -> Json:
    """That objects of these kinds are validated by the server."""
    group, _, version = api.rpartition("/")
    asked = [{"in": "query", "name": "fieldValidation", "schema": {"type": "string"}}]
    paths = {}
    for kind in KINDS[api]:
        path = f"/{_root(api)}/namespaces/{{namespace}}/{_resource(kind)['name']}/{{name}}"
        of = {"group": group, "version": version, "kind": kind}
        paths[path] = {"patch": {"x-kubernetes-group-version-kind": of, "parameters": asked, "responses": {}}}
    return {"openapi": "3.0.0", "info": {"title": "lab", "version": "1"}, "paths": paths}


def _group(name: str, apis: list[str]) -> Json:
    versions = [{"groupVersion": api, "version": api.rpartition("/")[2]} for api in apis]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _resource(kind: str) -> Json:
    lower = kind.lower()
    plural = f"{lower[:-1]}ies" if lower.endswith("y") else f"{lower}s"
    verbs = ["get", "list", "create", "update", "patch", "delete"]
    return {"name": plural, "singularName": lower, "namespaced": True, "kind": kind, "verbs": verbs}
