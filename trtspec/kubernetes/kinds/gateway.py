"""HTTPRoute (`gateway.networking.k8s.io/v1`) and InferencePool (`inference.networking.k8s.io/v1`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from trtspec.kubernetes.kinds.base import Object, Selector


@dataclass(frozen=True, slots=True)
class ParentRef:
    """The Gateway of a route."""

    group: str
    kind: str
    name: str
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class BackendRef:
    """What a route leads to: a Service's port, or an InferencePool, with its weight among several."""

    group: str
    kind: str
    name: str
    port: int | None = None
    weight: int | None = None


@dataclass(frozen=True, slots=True)
class Path:
    """How the path of a request begins."""

    type: str
    value: str


@dataclass(frozen=True, slots=True)
class Match:
    """Which requests are meant."""

    path: Path


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a request may take."""

    request: str


@dataclass(frozen=True, slots=True)
class RouteRule:
    """Where requests go."""

    matches: Sequence[Match]
    backend_refs: Sequence[BackendRef]
    timeouts: Timeouts


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """The requests to a Gateway that are led on."""

    parent_refs: Sequence[ParentRef]
    rules: Sequence[RouteRule]
    hostnames: Sequence[str] | None = None


@dataclass(frozen=True)
class HttpRoute(Object):
    """The way from a Gateway to servers."""

    api_version: ClassVar[str] = "gateway.networking.k8s.io/v1"
    kind: ClassVar[str] = "HTTPRoute"

    spec: RouteSpec


@dataclass(frozen=True, slots=True)
class PortNumber:
    """A port."""

    number: int


@dataclass(frozen=True, slots=True)
class PickerRef:
    """The Service of the endpoint picker, and its port."""

    name: str
    port: PortNumber


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """Pods, one of which the picker chooses for each request."""

    selector: Selector
    target_ports: Sequence[PortNumber]
    endpoint_picker_ref: PickerRef


@dataclass(frozen=True)
class InferencePool(Object):
    """Pods behind an endpoint picker."""

    api_version: ClassVar[str] = "inference.networking.k8s.io/v1"
    kind: ClassVar[str] = "InferencePool"

    spec: PoolSpec
