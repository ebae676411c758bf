"""The share of requests by weights of the Gateway API's HTTPRoute, where the recipe has one; pure."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace

from trtspec.kubernetes.cluster import Manifest
from trtspec.kubernetes.kinds.base import document
from trtspec.kubernetes.rendering.labels import CANARY, STABLE, on_track
from trtspec.kubernetes.rendering.workload import service
from trtspec.kubernetes.resources import HTTP_ROUTE, SERVICE, Ref
from trtspec.kubernetes.resources import ref_of as ref_of_manifest
from trtspec.kubernetes.values import Values

_WHOLE = 1000


def route_of(manifests: list[Manifest]) -> Manifest | None:
    """Returns the route that has weights; None where there is none, or an endpoint picker chooses."""
    for manifest in manifests:
        if ref_of_manifest(manifest).resource == HTTP_ROUTE:
            backends = manifest["spec"]["rules"][0]["backendRefs"]
            return manifest if [each["kind"] for each in backends] == ["Service"] else None
    return None


def services(values: Values) -> list[Manifest]:
    """Returns a Service of each build alone, which the route's weights are between."""
    return [_service(values, track) for track in (STABLE, CANARY)]


def service_refs(name: str) -> list[Ref]:
    return [Ref(SERVICE, f"{name}-{track}") for track in (STABLE, CANARY)]


def weighted(route: Manifest, name: str, share: float) -> Manifest:
    """Returns a route by which the canary has a share of the requests."""
    made = deepcopy(route)
    (rule,) = made["spec"]["rules"]
    (backend,) = rule["backendRefs"]
    canary = round(share * _WHOLE)
    rule["backendRefs"] = [
        {**backend, "name": f"{name}-{STABLE}", "weight": _WHOLE - canary},
        {**backend, "name": f"{name}-{CANARY}", "weight": canary},
    ]
    return made


def _service(values: Values, track: str) -> Manifest:
    made = service(values)
    chosen: Mapping[str, str] = on_track(values, track)
    metadata = replace(made.metadata, name=f"{values.name}-{track}")
    return document(replace(made, metadata=metadata, spec=replace(made.spec, selector=chosen)))
